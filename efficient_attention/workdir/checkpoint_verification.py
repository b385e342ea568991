"""Verifies the checksums of a run's checkpoints, and the files next to them, without loading a model."""

from pathlib import Path

from efficient_attention.errors import InputError, RunError
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from efficient_attention.workdir.checksums import has_all_checksums
from efficient_attention.workdir.config_file import CONFIG, check_is_folder, read_config
from efficient_attention.workdir.inference_files import check_inference_files, describe_changed_file
from efficient_attention.workdir.stored_evaluations import LATER, read_late_evaluation


def verify_checkpoints(workdir: Path) -> None:
    """Verifies all checkpoints of a run, and prints for each, in ascending order, whether it is whole, damaged or
    without checksums.

    A checkpoint that a running trainer removes meanwhile has no line. A checkpoint that it is saving does not count as
    damaged.

    Raises:
        InputError: there is no checkpoint.
        RunError: some are damaged.
    """
    check_is_folder(workdir)
    reader = CheckpointReader(workdir)
    steps = reader.existing_steps()
    damaged = []
    for step in steps:
        # `is_being_saved` is read before `find_damage`, because the trainer may write the checksums at any moment.
        is_being_saved = reader.is_being_saved(step)
        fault = '' if is_being_saved else reader.find_damage(step) or _find_changed_extra_file(reader, step)
        if step not in reader.written_steps():
            continue
        print(
            f'checkpoint step {step}: {"being saved" if is_being_saved else _describe_checkpoint(reader, step, fault)}'
        )
        damaged += [step] if fault else []
    if damaged:
        named = ', '.join(map(str, damaged))
        raise RunError(f'{reader.folder}: {len(damaged)} of {len(steps)} checkpoints damaged: step {named}')


def _find_changed_extra_file(reader: CheckpointReader, step: int) -> str:
    """Returns a short text that says how a file next to a checkpoint differs from its content at the save; '' if none
    differs.
    """
    workdir, later = reader.folder.parent, reader.folder / f'{step}{LATER}'
    try:
        record = reader.read_record(step)
    # Either a trainer has removed the checkpoint, or its record is unreadable, which its checksums reveal.
    except InputError:
        return ''
    if later.exists() and not read_late_evaluation(reader.folder, step):
        return f'{later.name} is not what was written'
    if changed := describe_changed_file(workdir, record):
        return changed
    try:
        if (workdir / CONFIG).exists():
            check_inference_files(workdir, read_config(workdir), step, record)
    except InputError as error:
        return str(error)
    return ''


def _describe_checkpoint(reader: CheckpointReader, step: int, fault: str) -> str:
    if fault:
        return f'damaged: {fault}'
    sealed = has_all_checksums(reader.folder / str(step))
    return 'every file is as it was written' if sealed else 'written before checksums existed, nothing to compare'
