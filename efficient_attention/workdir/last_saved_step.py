"""Records whether a run ever saved a checkpoint, so that a run with a lost checkpoint folder does not start over.

A volume that is not mounted leaves an empty folder, or none. The last saved step is stored in a file next to the folder
of checkpoints. Runs of older versions lack this file; their metrics show whether they have saved a checkpoint.
"""

import json
from pathlib import Path

from efficient_attention.atomic_files import write_atomically
from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.errors import InputError, is_whole_number
from efficient_attention.workdir.config_file import read_config
from efficient_attention.workdir.metrics import read_metrics

FILE_NAME = 'last_saved.json'
STEP = 'step'


def write_last_saved_step(workdir: Path, step: int) -> None:
    """Writes the number of the last saved step into the workdir; raises RunError or InputError if the file cannot be
    written.
    """
    write_atomically(workdir / FILE_NAME, json.dumps({STEP: step}) + '\n')


def read_last_saved_step(workdir: Path) -> int | None:
    """Returns the number of the last saved step, as recorded in the workdir; None if the file is missing or cannot be
    read.
    """
    try:
        step = read_json_file(workdir / FILE_NAME)[STEP]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return step if is_whole_number(step) and step >= 0 else None


def lost_checkpoints_message(workdir: Path, folder: Path) -> str:
    """Returns an error text if a folder without checkpoints must have had some; '' if the run may never have saved a
    checkpoint.

    Args:
        workdir: the folder of the run.
        folder: the folder where the run's checkpoints should be.
    """
    saved, last = read_last_saved_step(workdir), last_logged_step(workdir)
    if saved is None and not (last and (not folder.is_dir() or is_past_first_save(workdir))):
        return ''
    why = f'metrics.jsonl goes to step {last}' if saved is None else f'step {saved} was saved'
    return f'there is no checkpoint in {folder}, though {why}; restore it (is its volume mounted?)'


def missing_newer_step_note(workdir: Path, folder: Path, newest: int) -> list[str]:
    """Returns a list with one note if the run once saved a later step than the step from which it resumes, and the
    files of the later step are gone; otherwise [].

    A checkpoint that was moved to the folder 'damaged' is not gone.

    Args:
        workdir: the folder of the run.
        folder: the folder of its checkpoints.
        newest: the step from which the run resumes.
    """
    saved = read_last_saved_step(workdir)
    if saved is None or saved <= newest or any((folder / place / str(saved)).exists() for place in ('', 'damaged')):
        return []
    return [
        f'{folder}: step {saved} was saved and is gone; this run goes on from step {newest} and drops later lines of '
        'metrics.jsonl'
    ]


def last_logged_step(workdir: Path) -> int:
    """Returns the last step in the workdir's metrics.jsonl; 0 if the file has no lines."""
    return max((line['step'] for line in read_metrics(workdir)), default=0)


def is_past_first_save(workdir: Path, step: int | None = None) -> bool:
    """Returns whether a run has certainly completed its first save.

    A run starts a save only after the previous save is complete. A later save that has started proves the first save.

    Args:
        workdir: the folder of the run.
        step: a step that is written but has no checksums; None = there is none.
    """
    if read_last_saved_step(workdir) is not None:
        return True
    try:
        every = read_config(workdir).checkpoint.every_steps
    except InputError:
        return False
    step = every if step is None else step
    next_due = (step // every + 1) * every  # A run writes the metrics of step `next_due` before it saves that step.
    return step > every or last_logged_step(workdir) > next_due
