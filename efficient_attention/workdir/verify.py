"""A check of a run's checkpoints against their seals, and of the files beside them, without loading a model."""

from pathlib import Path

from efficient_attention.errors import InputError, RunError
from efficient_attention.workdir.answer_files import changed_file, check_answers
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from efficient_attention.workdir.config_file import CONFIG, check_is_folder, read_config
from efficient_attention.workdir.evaluations import LATER, read_later
from efficient_attention.workdir.seal import is_sealed


def verify_checkpoints(workdir: Path) -> None:
    """Prints a line for each checkpoint of a run, in rising order of steps: whole, damaged, or without a seal.

    Beside a trainer, a step that it removes meanwhile has no line, and one that it is saving is no damage.

    Raises:
        InputError: there is no checkpoint.
        RunError: some are damaged.
    """
    check_is_folder(workdir)
    reader = CheckpointReader(workdir)
    steps = reader.existing_steps()
    damaged = []
    for step in steps:
        is_being_saved = reader.is_being_saved(step)  # first: it may be sealed at any moment
        fault = '' if is_being_saved else reader.damage(step) or _changed_beside(reader, step)
        if step not in reader.written_steps():
            continue
        print(f'checkpoint step {step}: {"being saved" if is_being_saved else _in_words(reader, step, fault)}')
        damaged += [step] if fault else []
    if damaged:
        named = ', '.join(map(str, damaged))
        raise RunError(f'{reader.folder}: {len(damaged)} of {len(steps)} checkpoints damaged: step {named}')


def _changed_beside(reader: CheckpointReader, step: int) -> str:
    """How a file beside a step differs from when the step was saved, in a few words; '' if none differs."""
    workdir, later = reader.folder.parent, reader.folder / f'{step}{LATER}'
    try:
        record = reader.record(step)
    except InputError:  # the step was removed meanwhile, or its record is unreadable: then its seal shows it
        return ''
    if later.exists() and not read_later(reader.folder, step):
        return f'{later.name} is not what was written'
    if changed := changed_file(workdir, record):
        return changed
    try:
        if (workdir / CONFIG).exists():
            check_answers(workdir, read_config(workdir), step, record)
    except InputError as error:
        return str(error)
    return ''


def _in_words(reader: CheckpointReader, step: int, fault: str) -> str:
    if fault:
        return f'damaged: {fault}'
    sealed = is_sealed(reader.folder / str(step))
    return 'every file is as it was written' if sealed else 'older than seals are, so that nothing can be compared'
