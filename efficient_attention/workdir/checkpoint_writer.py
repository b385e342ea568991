"""Saves a run: asynchronous, sharded checkpoints of the whole state, with Orbax.

The step under way is written beside the others under another name. Once it has its own, a thread flushes it to disk and
seals it (`seal.py`); only then it counts as saved. A step that is no longer kept is first renamed into
`checkpoints/trash/` and then removed, so that a process killed in between leaves no half-deleted step behind.
"""

import contextlib
import math
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from efficient_attention.config.checkpoint import CheckpointConfig
from efficient_attention.errors import InputError, RunError, show_error
from efficient_attention.workdir.checkpoint_reader import (
    HAS_SEAL,
    RECORD,
    STATE,
    CheckpointReader,
    Saved,
    label_of,
    reason,
    without_orbax_log,
)
from efficient_attention.workdir.lock import WorkdirLock
from efficient_attention.workdir.seal import write_seal

TRASH = 'trash'
DAMAGED = 'damaged'  # folder of steps that were found damaged or not sealed
POLL_SECONDS = 0.02


class SaveError(RunError):
    """A checkpoint was not saved: one line with the step and the reason. Entry points print it and exit with code 1."""


class Sealing:
    """A thread that seals a step when Orbax has given it its name; other processes seal what they wrote themselves."""

    def __init__(self, folder: Path, label: str) -> None:
        self._folder, self._label = folder, label
        self._given_up = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name='seal', daemon=True)
        self._thread.start()

    def give_up(self) -> None:
        """Ends the thread: the step will not come."""
        self._given_up.set()
        self._thread.join()

    def wait(self) -> None:
        """Waits until the step is sealed; raises what kept it from being so."""
        self._thread.join()
        if self._error:
            raise self._error

    def _run(self) -> None:
        while not self._folder.is_dir():
            if self._given_up.wait(POLL_SECONDS):
                return
        try:
            write_seal(self._folder, self._label, process=jax.process_index(), processes=jax.process_count())
        except Exception as error:  # raised where the save is waited for
            self._error = error


class Checkpoints:
    """The checkpoints of one workdir, opened by its one trainer; `reader` tells what is there and restores it.

    Use as a context manager: leaving it waits for the last save and raises if that failed. Every process of a run calls
    every method: all take part in a save, and process 0 holds the lock of the workdir. Orbax's own log lines are
    dropped meanwhile; what they would say is raised.

    `newest` is the checkpoint to go on from, None where there is none. Newer steps that are damaged or not sealed are
    moved to `checkpoints/damaged/`.

    Raises:
        InputError: another trainer has the workdir open, or all its checkpoints are damaged.
    """

    def __init__(self, workdir: Path, config: CheckpointConfig) -> None:
        self.reader = CheckpointReader(workdir)
        self._config = config
        self._saving: tuple[int, int] | None = None  # step and bytes of the save that may be under way
        self._sealing: Sealing | None = None
        with contextlib.ExitStack() as opened:
            if jax.process_index() == 0:
                opened.enter_context(WorkdirLock(workdir))
            self.newest = self._newest_undamaged()
            opened.enter_context(without_orbax_log())
            self._manager = ocp.CheckpointManager(self.reader.folder, options=self._options())
            self._resources = opened.pop_all()
        self._empty_trash()

    def save(
        self, step: int, state: Any, *, record: Mapping[str, Any], metrics: Mapping[str, float] | None = None
    ) -> None:
        """Starts to save a state; returns as soon as its arrays are copied, so that they may be donated or changed.

        Waits for the save before, if that is still under way. A step that is already saved is left as it is.

        Args:
            step: updates made so far.
            state: pytree of arrays, on any mesh.
            record: JSON object that goes with it, with the 'fingerprint' that a run compares when it goes on.
            metrics: {name: value} known for this state, `best_metric` among them; None = this state was not evaluated.

        Raises:
            SaveError: this save could not start, or the one before it failed.
            InputError: `metrics` lacks `checkpoint.best_metric`.
        """
        self.wait()
        if step in self._manager.all_steps():
            return
        known = {name: float(value) for name, value in (metrics or {}).items() if math.isfinite(value)}
        if metrics is not None and self._config.best_metric not in ('', *metrics):
            raise InputError(f'checkpoint.best_metric is {self._config.best_metric!r}; known: {", ".join(metrics)}')
        items = {
            STATE: ocp.args.StandardSave(state),
            RECORD: ocp.args.JsonSave({**record, 'step': step, 'metrics': known, HAS_SEAL: True}),
        }
        self._saving = (step, sum(leaf.nbytes for leaf in jax.tree.leaves(state)))
        with self._one_line_errors():
            scores = known if self._config.best_metric in known else None
            self._manager.save(step, args=ocp.args.Composite(**items), metrics=scores)
            self._sealing = Sealing(self.reader.folder / str(step), label_of(step))

    def wait(self) -> None:
        """Waits until the save under way is complete on disk and sealed; raises SaveError if it failed."""
        with self._one_line_errors():
            try:
                self._manager.wait_until_finished()
            except BaseException:
                if self._sealing:
                    self._sealing.give_up()
                raise
            finally:
                sealing, self._sealing = self._sealing, None
            if sealing:
                sealing.wait()
        self._saving = None
        self._empty_trash()

    def close(self) -> None:
        """Waits for the save under way and releases the workdir; raises SaveError if that save failed."""
        with self._resources:
            try:
                self.wait()
            finally:
                self._manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, trace
        try:
            self.close()
        except SaveError as failure:
            if error is None:
                raise
            show_error(failure)  # what ends the run goes on upwards; this must not be lost

    def _newest_undamaged(self) -> Saved | None:
        """The checkpoint to go on from. Steps that cannot be used, which a save would stumble over, are set aside."""
        newest = self.reader.newest()
        if jax.process_count() > 1:  # all have looked before anything is moved, and nobody goes on before it is
            multihost_utils.sync_global_devices('checkpoints are chosen')
        if jax.process_index() == 0:
            for step in self.reader.written_steps():
                if newest is None or step > newest.step or step not in self.reader.steps():
                    self._set_aside(step)
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices('checkpoints are set aside')
        return newest

    def _set_aside(self, step: int) -> None:
        """Moves a step to `damaged/`, in the place of one of the same number that is there."""
        target = self.reader.folder / DAMAGED / str(step)
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(exist_ok=True)
        (self.reader.folder / str(step)).rename(target)

    def _options(self) -> ocp.CheckpointManagerOptions:
        policies = ocp.checkpoint_managers
        best = policies.BestN(
            get_metric_fn=self._goodness, n=self._config.keep_best, keep_checkpoints_without_metrics=False
        )
        return ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(self._config.keep), best]),
            best_fn=self._goodness,  # makes Orbax keep the metrics of each step, so that they outlive a restart
            cleanup_tmp_directories=True,
            todelete_subdir=TRASH,
        )

    def _goodness(self, metrics: Mapping[str, float]) -> float:
        """What Orbax sorts by: higher is better. A step from before `best_metric` was chosen is the worst."""
        value = metrics.get(self._config.best_metric, math.nan)
        signed = value if self._config.best_mode == 'max' else -value
        return -math.inf if math.isnan(signed) else signed

    def _empty_trash(self) -> None:
        if jax.process_index() == 0:
            shutil.rmtree(self.reader.folder / TRASH, ignore_errors=True)

    @contextlib.contextmanager
    def _one_line_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # Orbax and TensorStore raise many kinds, after hundreds of lines of traceback
            step, size = self._saving or (0, 0)
            self._saving = None
            folder = self.reader.folder
            free = f'{shutil.disk_usage(folder).free / 1e6:.0f} MB free' if folder.is_dir() else 'the folder is gone'
            sizes = f'{size / 1e6:.1f} MB to write, {free}'
            raise SaveError(f'checkpoint step {step} not saved in {folder}: {reason(error)} ({sizes})') from None
