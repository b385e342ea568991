"""A trained model from its workdir alone: config.json, the tokenizer and a checkpoint, never a Python file."""

from pathlib import Path
from typing import Any, NamedTuple

from efficient_attention.training.checkpoint_reader import CheckpointReader
from efficient_attention.training.config import RunConfig
from efficient_attention.training.run import Run, build_run
from efficient_attention.training.workdir import read_config


class TrainedRun(NamedTuple):
    """A run with the parameters of one of its steps."""

    run: Run
    params: Any
    step: int


def restore_run(workdir: Path, *, step: int | None = None, config: RunConfig | None = None) -> TrainedRun:
    """The run in `workdir` with the parameters of `step` (None = the newest checkpoint), on this machine's devices.

    Args:
        workdir: a folder that train.py wrote.
        step: optimizer steps.
        config: instead of the workdir's own, with fields changed that leave the parameters as they are.

    Raises:
        InputError: there is no run or checkpoint, the checkpoint does not fit the config, or the data has changed.
    """
    run = build_run(config or read_config(workdir))
    restored = CheckpointReader(workdir).restore({'params': run.abstract_state.params}, step)
    return TrainedRun(run, restored.state['params'], restored.step)
