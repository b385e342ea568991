"""A trained model from its workdir alone: config.json, the tokenizer and a checkpoint, never a Python file."""

from pathlib import Path
from typing import Any, NamedTuple

from efficient_attention.config.nested_dicts import to_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.training.run import Run, build_run
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from efficient_attention.workdir.config_file import CHANGEABLE, read_config, with_new_fields
from efficient_attention.workdir.fingerprint import compare_fingerprints

TRAINING_ONLY = ('config.train.*', 'config.optimizer.*')  # what the use of trained parameters does not depend on


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
    config = config or read_config(workdir)
    run = build_run(config)
    restored = CheckpointReader(workdir).restore({'params': run.abstract_state.params}, step)
    compare_fingerprints(
        with_new_fields(restored.record.get('fingerprint', {})),
        {'config': to_dict(config)} | run.fingerprint,
        where=str(workdir),
        changeable=CHANGEABLE + TRAINING_ONLY,
        advice='put back what was changed since',
    )
    return TrainedRun(run, restored.state['params'], restored.step)
