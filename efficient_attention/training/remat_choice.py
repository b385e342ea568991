"""Chooses what the backward pass recomputes in a run with `model.remat` 'auto', by the memory of compiled steps."""

from collections.abc import Callable
from typing import Any

import jax

from efficient_attention.config.model import REMAT_POLICIES
from efficient_attention.models.device_memory import device_memory_limit, format_bytes, program_bytes
from efficient_attention.objectives.objective import Batch
from efficient_attention.processes.peer_monitor import gather_from_peers
from efficient_attention.training.run import Run
from efficient_attention.training.state import TrainState
from efficient_attention.training.step import StepFn, jit_train_step

FITS, TOO_LARGE = 'fits', 'too large'  # texts that processes exchange


def policies_to_try(platform: str) -> tuple[str, ...]:
    """Returns the policies that `model.remat` 'auto' tries, in order, on devices of a JAX platform such as 'gpu'.

    Memory traffic limits the step of an accelerator. With 'dots', a step has less traffic than with 'none', and needs
    less memory, so 'none' is not tried: docs/results/scaling.md has both for one H200. For TPUs, the policies were not
    compared. 'full' has still less traffic, but computes all products of the forward pass again. On a CPU, products are
    slow, so policies that recompute less come first.
    """
    return REMAT_POLICIES if platform == 'cpu' else tuple(policy for policy in REMAT_POLICIES if policy != 'none')


class StepWithinMemory:
    """The training step of a run with `model.remat` 'auto': (state, batch) -> (next state, metrics).

    For each shape of batch, it compiles the step with one policy of `policies_to_try` after another. It runs the first
    program that fits a device's memory in every process, or the last program if none fits.

    Args:
        run: the run.
        print_line: prints a line about the chosen policy.
        options: extra arguments of `jit_train_step`.
    """

    def __init__(self, run: Run, print_line: Callable[[str], None], options: dict[str, Any]) -> None:
        self.run, self.print_line, self.options = run, print_line, options
        self.policies = policies_to_try(self.run.mesh.local_devices[0].platform)
        limits = map(device_memory_limit, self.run.mesh.local_devices)
        self.limit = min((limit for limit in limits if limit is not None), default=None)  # bytes; None = not known
        self.programs: dict[Any, StepFn] = {}  # by the shapes of a batch

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        shapes = tuple((name, leaf.shape) for name, leaf in sorted(batch.items()))
        if shapes not in self.programs:
            self.programs[shapes] = self.compile_within_memory(state, batch)
        return self.programs[shapes](state, batch)

    def compile_within_memory(self, state: TrainState, batch: Batch) -> StepFn:
        """Compiles the step with the first policy that fits, and prints which policy this is and why.

        Raises:
            jax.errors.JaxRuntimeError: the compiler refuses the step, even if the step recomputes all activations.
        """
        *policies, last = self.policies
        reasons: list[str] = []
        for policy in policies:
            try:
                program = self.compile_policy(policy, state, batch)
            except jax.errors.JaxRuntimeError as error:
                if 'RESOURCE_EXHAUSTED' not in str(error):
                    raise
                program = None
            is_fitting = program is not None and self.is_fitting(program)
            # Processes whose devices differ must still run the same program.
            if set(gather_from_peers(FITS if is_fitting else TOO_LARGE)) == {FITS} and program is not None:
                self.print_choice(policy, program, reasons)
                return program
            needed = 'more than the compiler allows' if program is None else format_bytes(program_bytes(program))
            reasons.append(f'{policy!r} needs {needed}')
        program = self.compile_policy(last, state, batch)
        self.print_choice(last, program, reasons)
        return program

    def compile_policy(self, policy: str, state: TrainState, batch: Batch) -> jax.stages.Compiled:
        """Returns the training step compiled with this policy."""
        step: Any = jit_train_step(self.run, policy, **self.options)
        return step.lower(state, batch).compile()

    def is_fitting(self, program: jax.stages.Compiled) -> bool:
        """Returns whether a program fits each device of this process; True if their memory is not known."""
        return self.limit is None or program_bytes(program) <= self.limit

    def print_choice(self, policy: str, program: jax.stages.Compiled, reasons: list[str]) -> None:
        """Prints which policy the run takes, and the memory that this policy and the refused policies need."""
        needed = f'{policy!r} needs {format_bytes(program_bytes(program))}'
        limit = (
            'the memory of this device is not known'
            if self.limit is None
            else f'a device has {format_bytes(self.limit)}'
        )
        fault = '' if self.is_fitting(program) else ', so the run may end for lack of memory'
        self.print_line(f'model.remat=auto chose {policy!r}: {", ".join([*reasons, needed])}; {limit}{fault}')
