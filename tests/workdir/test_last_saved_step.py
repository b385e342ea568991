"""Tests that a workdir which has lost its checkpoints is no new run, but one that has not saved yet may start."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from efficient_attention.config.checkpoint import CheckpointConfig
from efficient_attention.config.dict_conversion import to_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from efficient_attention.workdir.checkpoint_writer import CheckpointWriter
from efficient_attention.workdir.last_saved_step import FILE_NAME, missing_newer_step_note, read_last_saved_step
from efficient_attention.workdir.metrics import MetricsLog
from tests.workdir.test_checkpoint_writer import make_state

SAVED = 'there is no checkpoint in {}/checkpoints, though step 7 was saved; restore it (is its volume mounted?)'


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Returns a workdir with the steps 3 and 7, of a run that saves every 5 steps and has metrics up to step 9."""
    config = dataclasses.replace(RunConfig(), checkpoint=CheckpointConfig(every_steps=5))
    (tmp_path / 'config.json').write_text(json.dumps(to_dict(config)))
    with CheckpointWriter(tmp_path, config.checkpoint) as checkpoints:
        for step in (3, 7):
            checkpoints.save(step, make_state(step), record={})
    write_lines(tmp_path, 9)
    return tmp_path


def write_lines(workdir: Path, last: int) -> None:
    with MetricsLog(workdir) as log:
        for step in range(1, last + 1):
            log.write_metrics(step, 'train', {'loss': 1.0})


def refusal(workdir: Path) -> str:
    with pytest.raises(InputError) as caught:
        CheckpointReader(workdir).check_checkpoints_not_lost()
    return str(caught.value)


def test_each_save_is_noted(saved: Path):
    assert read_last_saved_step(saved) == 7
    CheckpointReader(saved).check_checkpoints_not_lost()


@pytest.mark.parametrize('is_mounted_over', [True, False])
def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew_and_is_not_evaluated(saved: Path, is_mounted_over: bool):
    shutil.rmtree(saved / 'checkpoints')
    if is_mounted_over:
        (saved / 'checkpoints').mkdir()
    line = SAVED.format(saved)
    assert refusal(saved) == f'{line}, name a new --workdir, or remove {saved} to begin anew'
    reader = CheckpointReader(saved)
    for read in (reader.read_record, reader.existing_steps, lambda: reader.parse_choice('best', metric='loss')):
        with pytest.raises(InputError) as caught:
            read()
        assert str(caught.value) == line


@pytest.mark.parametrize('note', [None, 'x', '[]', '{"step": "a"}'])
@pytest.mark.parametrize(('last', 'has_folder', 'is_lost'), [(11, True, True), (10, True, False), (1, False, True)])
def test_without_the_note_the_metrics_tell(saved: Path, note: str | None, last: int, has_folder: bool, is_lost: bool):
    shutil.rmtree(saved / 'checkpoints')
    if has_folder:
        (saved / 'checkpoints').mkdir()
    (saved / FILE_NAME).unlink()
    if note is not None:
        (saved / FILE_NAME).write_text(note)
    write_lines(saved, last)
    if is_lost:
        assert f'though metrics.jsonl goes to step {last}; restore it' in refusal(saved)
    else:  # such a run may have been killed before its first checkpoint was complete
        CheckpointReader(saved).check_checkpoints_not_lost()


def test_a_later_step_that_is_gone_is_named(saved: Path):
    folder = saved / 'checkpoints'
    assert missing_newer_step_note(saved, folder, 7) == missing_newer_step_note(saved, folder, 3) == []
    (folder / '7').rename(folder / 'elsewhere')
    [line] = missing_newer_step_note(saved, folder, 3)
    assert 'step 7 was saved and is gone; this run goes on from step 3' in line
    (folder / 'damaged').mkdir()
    (folder / 'elsewhere').rename(folder / 'damaged' / '7')  # its damage was reported when it was moved there
    assert missing_newer_step_note(saved, folder, 3) == []


@pytest.mark.parametrize('step', ['true', '-3', '2.5', '"7"'])
def test_a_note_that_holds_no_step_counts_as_none(tmp_path: Path, step: str):
    (tmp_path / FILE_NAME).write_text(f'{{"step": {step}}}')
    assert read_last_saved_step(tmp_path) is None


def test_a_workdir_in_which_nothing_was_trained_begins(tmp_path: Path):
    CheckpointReader(tmp_path / 'new').check_checkpoints_not_lost()
    (tmp_path / 'config.json').write_text('{}')
    CheckpointReader(tmp_path).check_checkpoints_not_lost()


def test_several_steps_without_checksums_are_no_first_save(saved: Path):
    shutil.rmtree(saved / 'checkpoints' / '7')
    (saved / 'checkpoints' / '3' / 'seal-0-of-1.sha256').unlink()
    with pytest.raises(InputError, match='has checksums, which a kill in the first save does not explain'):
        CheckpointReader(saved).newest_checkpoint()
    (saved / FILE_NAME).unlink()
    write_lines(saved, 5)
    assert CheckpointReader(saved).newest_checkpoint() is None
