"""Compiles the training step of a config for a topology: the same program that train.py would run there."""

import dataclasses
import re
import sys
from typing import Any

import jax

from efficient_attention.config.run import RunConfig
from efficient_attention.models.device_memory import state_bytes
from efficient_attention.models.sharding import batch_sharding
from efficient_attention.planning.hlo_program import HloProgram, parse_program
from efficient_attention.training.run import Run, build_run_without_data
from efficient_attention.training.step import jit_train_step

# This pattern matches the TPU compiler's error for a program that needs more memory than a device has.
_TOO_LARGE = re.compile(r'HLO temporaries \(([\d.]+)([TGMK])\)|Used ([\d.]+)([TGMK]) of')
_UNITS = {'T': 2**40, 'G': 2**30, 'M': 2**20, 'K': 2**10}


@dataclasses.dataclass(frozen=True)
class StepMemory:
    """The memory in bytes that one device needs while it runs a training step, by purpose."""

    parameters: int
    optimizer: int
    others: int  # bytes of counters, and of arrays that one batch passes to the next, such as segment memory
    batch: int
    temporary: int  # bytes that exist only within the step: activations, gradients, copies
    program: int  # bytes of code, and of results that do not reuse the memory of an argument

    @property
    def total_bytes(self) -> int:
        """The total memory in bytes that one device needs for a training step."""
        return sum(dataclasses.astuple(self))

    @property
    def bytes_without_rows(self) -> int:
        """The approximate bytes of a step with an empty batch: the state, the code, and a gradient per parameter."""
        gradients = min(self.parameters, self.temporary // 2)
        return self.parameters + self.optimizer + self.others + self.program + gradients


@dataclasses.dataclass(frozen=True)
class PlannedStep:
    """A training step compiled for a plan; `program` is None if the compiler refused it as too large for a device."""

    run: Run
    memory: StepMemory
    program: HloProgram | None


def compile_step(config: RunConfig, devices: list[jax.Device]) -> PlannedStep:
    """Compiles a config's training step for the given devices; allocates no arrays and reads no data.

    Raises:
        InputError: the config does not fit the devices.
    """
    run = build_run_without_data(config, devices)
    rows = batch_sharding(run.mesh)
    batch = {name: shape.update(sharding=rows) for name, shape in run.task.batch_shapes().items()}
    step: Any = jit_train_step(run)
    lowered = step.lower(run.abstract_state, batch)
    state = run.abstract_state
    kept = {
        'parameters': state_bytes(state.params),
        'optimizer': state_bytes(state.opt_state),
        'others': state_bytes(dataclasses.replace(state, params=None, opt_state=None)),
        'batch': state_bytes(batch),
    }
    print(f'compiling for a batch of {config.train.batch_size} rows', file=sys.stderr)
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        needed = temporary_bytes_from_error(str(error))
        if needed is None:
            raise
        return PlannedStep(run, StepMemory(**kept, temporary=needed, program=0), None)
    found = compiled.memory_analysis()
    program = found.generated_code_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    # The compiler pads arrays, so arguments may need more bytes than their elements.
    padding = found.argument_size_in_bytes - sum(kept.values())
    memory = StepMemory(**kept, temporary=found.temp_size_in_bytes, program=program + max(padding, 0))
    return PlannedStep(run, memory, parse_program(compiled.as_text() or ''))


def temporary_bytes_from_error(error: str) -> int | None:
    """Returns the bytes that the compiler's out-of-memory error names; None for another error."""
    found = _TOO_LARGE.search(error) if 'RESOURCE_EXHAUSTED' in error else None
    if found is None:
        return None
    number, unit = (found[1], found[2]) if found[1] else (found[3], found[4])
    return int(float(number) * _UNITS[unit])
