"""A check of a run's checkpoints against their seals, without loading a model."""

from pathlib import Path

from efficient_attention.errors import RunError
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from efficient_attention.workdir.seal import is_sealed


def verify_checkpoints(workdir: Path) -> None:
    """Prints a line for each checkpoint of a run, in rising order of steps: whole, damaged, or without a seal.

    Raises:
        InputError: there is no checkpoint.
        RunError: some are damaged.
    """
    reader = CheckpointReader(workdir)
    steps = reader.existing_steps()
    faults = {step: reader.damage(step) for step in steps}
    for step, fault in faults.items():
        sealed = is_sealed(reader.folder / str(step))
        whole = 'every file is as it was written' if sealed else 'older than seals are, so that nothing can be compared'
        print(f'checkpoint step {step}: {f"damaged: {fault}" if fault else whole}')
    damaged = [step for step, fault in faults.items() if fault]
    if damaged:
        raise RunError(f'{reader.folder}: damaged: {", ".join(map(str, damaged))} of {len(steps)} checkpoint(s)')
