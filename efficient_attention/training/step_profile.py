"""Traces a range of training steps with JAX's profiler, in the folder layout that XProf and TensorBoard read."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
from jax.sharding import Mesh

from efficient_attention.errors import InputError, counted, one_line
from efficient_attention.training.trace_operations import longest_operations

FOLDER = 'profile'  # folder of a workdir that contains its traces
LISTED = 5  # number of operations that are printed
PROGRAM = 'jit_train_step'  # name of the compiled training step
# With command buffers, XProf's tables of operations are empty on GPUs (github.com/openxla/xprof, issue 3070).
WITHOUT_COMMAND_BUFFERS = {'xla_gpu_enable_command_buffer': ''}


def check_profiled_steps(profile: tuple[int, int] | None, last: int) -> None:
    """Raises InputError if the range `profile`, the first and last profiled step, ends after the run's last step."""
    if profile is not None and profile[1] > last:
        raise InputError(f'--profile {profile[0]}:{profile[1]} is beyond the run, which has {counted(last, "step")}')


def steps_left_to_profile(
    profile: tuple[int, int] | None, done: int, print_line: Callable[[str], None]
) -> tuple[int, int] | None:
    """Returns the range `profile`; prints a line and returns None if a resumed run has made steps of the range before.

    Args:
        profile: first and last profiled step; None = no profile.
        done: number of steps that the run has made before.
        print_line: prints a line on the terminal.
    """
    if profile is None or done < profile[0]:
        return profile
    before = counted(done, 'step')
    print_line(f'steps {profile[0]} to {profile[1]} are not profiled, because the run has already made {before}')
    return None


class StepProfile:
    """The trace of a range of training steps in process 0.

    As a context manager, it also ends the trace after an error.

    Args:
        workdir: folder of the run; the trace goes into its folder `profile`.
        steps: first and last step to trace; None = no trace.
    """

    def __init__(self, workdir: Path, steps: tuple[int, int] | None) -> None:
        self._folder, self._steps = workdir / FOLDER, steps if jax.process_index() == 0 else None
        self._is_asked_for, self._is_tracing = steps is not None, False

    def jit_options(self, mesh: Mesh) -> dict[str, Any]:
        """Returns the extra arguments of `jit_train_step`: on GPUs, a profiled step is compiled without command
        buffers.

        All processes of a run must compile the same program.
        """
        is_gpu = mesh.devices.flat[0].platform == 'gpu'
        return {'compiler_options': WITHOUT_COMMAND_BUFFERS} if self._is_asked_for and is_gpu else {}

    def is_first(self, step: int) -> bool:
        """Returns whether the trace starts before this step."""
        return self._steps is not None and step == self._steps[0]

    def is_last(self, step: int) -> bool:
        """Returns whether the trace ends after this step."""
        return self._steps is not None and step == self._steps[1]

    def annotated_step(self, step: int) -> contextlib.AbstractContextManager[Any]:
        """Returns a context manager for the call of a training step, which names the step in a trace."""
        return (
            jax.profiler.StepTraceAnnotation('train', step_num=step) if self._is_tracing else contextlib.nullcontext()
        )

    def start_trace(self) -> list[str]:
        """Starts the trace; returns a line for the terminal if that fails, because it must not end the training."""
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # Tracing each Python call would slow the profiled steps.
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            jax.profiler.start_trace(self._folder, profiler_options=options)
        except Exception as error:
            return [f'no step is profiled: {one_line(error)}']
        self._is_tracing = True
        return []

    def end_trace(self) -> list[str]:
        """Writes the trace, and returns lines for the terminal: its folder, and its longest operations.

        An error, such as a full disk, becomes a line too.
        """
        if not self._is_tracing or self._steps is None:
            return []
        self._is_tracing, (first, last) = False, self._steps
        try:
            jax.profiler.stop_trace()
            (newest,) = sorted(self._folder.glob('plugins/profile/*/*.xplane.pb'), key=_write_time)[-1:]
            operations = longest_operations(newest.read_bytes(), PROGRAM, LISTED)
        except Exception as error:
            return [f'the profile of steps {first} to {last} failed: {one_line(error)}']
        line = f'steps {first} to {last} are profiled; all charts: xprof --logdir {self._folder}'
        if not operations:
            return [f'{line}; the trace has no operations']
        lines = [f'{line}; the {len(operations)} longest operations, with their share of all operations:']
        for one in operations:
            place = f'{one.scope} ({one.name})' if one.scope else one.name
            lines.append(f'{one.share:7.1%} {1000 * one.seconds / (last - first + 1):9.3g} ms a step  {place}')
        return lines

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        self.end_trace()


def _write_time(path: Path) -> float:
    return path.stat().st_mtime
