"""Tests the line that --verify prints for each checkpoint; tests/test_entry_points.py tests the commands."""

import json
import os
import shutil
from pathlib import Path

import pytest

from efficient_attention.config.checkpoint import CheckpointConfig
from efficient_attention.config.dict_conversion import to_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError, RunError
from efficient_attention.workdir.checkpoint_reader import CheckpointReader
from efficient_attention.workdir.checkpoint_verification import verify_checkpoints
from efficient_attention.workdir.checkpoint_writer import CheckpointWriter
from efficient_attention.workdir.inference_files import file_hashes
from tests.workdir.test_checkpoint_writer import make_state


def test_each_checkpoint_has_a_line(tmp_path: Path, capsys):
    with CheckpointWriter(tmp_path, CheckpointConfig()) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, make_state(step), record={})
    folder = tmp_path / 'checkpoints'
    (folder / '3' / 'seal-0-of-1.sha256').unlink()
    os.utime(folder / '3', (0, 0))
    record = folder / '1' / 'record' / 'metadata'
    record.write_text(json.dumps({'step': 1}))  # the record of a version that had no checksums
    (folder / '1' / 'seal-0-of-1.sha256').unlink()
    with pytest.raises(RunError, match=': 1 of 3 checkpoints damaged: step 3$'):
        verify_checkpoints(tmp_path)
    assert capsys.readouterr().out.splitlines() == [
        'checkpoint step 1: written before checksums existed, nothing to compare',
        'checkpoint step 2: every file is as it was written',
        'checkpoint step 3: damaged: it lacks checksums: seal-0-of-*.sha256 is missing',
    ]


def test_beside_a_trainer_what_it_saves_or_removes_is_no_damage(tmp_path: Path, capsys, monkeypatch):
    with CheckpointWriter(tmp_path, CheckpointConfig()) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, make_state(step), record={})
    (tmp_path / 'checkpoints' / '3' / 'seal-0-of-1.sha256').unlink()
    damage = CheckpointReader.find_damage

    def damage_of_a_removed_one(self: CheckpointReader, step: int) -> str:
        if step == 1:
            shutil.rmtree(self.folder / '1')
        return damage(self, step)

    monkeypatch.setattr(CheckpointReader, 'find_damage', damage_of_a_removed_one)
    verify_checkpoints(tmp_path)
    lines = ['checkpoint step 2: every file is as it was written', 'checkpoint step 3: being saved']
    assert capsys.readouterr().out.splitlines() == lines


def test_a_folder_without_checkpoints_is_one_line(tmp_path: Path):
    with pytest.raises(InputError, match=f'^there is no checkpoint in {tmp_path}/checkpoints$'):
        verify_checkpoints(tmp_path)


def test_a_file_beside_the_checkpoints_that_was_changed_is_damage(tmp_path: Path, capsys):
    (tmp_path / 'tokenizer.json').write_text('{}')
    with CheckpointWriter(tmp_path, CheckpointConfig()) as checkpoints:
        checkpoints.save(1, make_state(1), record={'files': file_hashes(tmp_path)})
    verify_checkpoints(tmp_path)
    (tmp_path / 'tokenizer.json').write_text('{ }')
    with pytest.raises(RunError, match='1 of 1 checkpoints damaged'):
        verify_checkpoints(tmp_path)
    assert capsys.readouterr().out.splitlines() == [
        'checkpoint step 1: every file is as it was written',
        'checkpoint step 1: damaged: tokenizer.json is not what was written',
    ]


def test_a_config_or_late_metrics_that_were_changed_are_damage(tmp_path: Path, capsys):
    config = to_dict(RunConfig())
    (tmp_path / 'config.json').write_text(json.dumps(config))
    with CheckpointWriter(tmp_path, CheckpointConfig()) as checkpoints:
        checkpoints.save(1, make_state(1), record={'fingerprint': {'config': config}, 'evaluations': []})
    with CheckpointWriter(tmp_path, CheckpointConfig()) as checkpoints:
        checkpoints.write_evaluation_metrics(1, {'loss': 2.0})
    verify_checkpoints(tmp_path)
    late = tmp_path / 'checkpoints' / '1.metrics.json'
    written = late.read_text()
    late.write_text(written.replace('2.0', '3.0'))
    with pytest.raises(RunError, match='damaged'):
        verify_checkpoints(tmp_path)
    late.write_text(written)
    config['model']['heads'] *= 2
    (tmp_path / 'config.json').write_text(json.dumps(config))
    with pytest.raises(RunError, match='damaged'):
        verify_checkpoints(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith('every file is as it was written')
    assert lines[1].endswith('damaged: 1.metrics.json is not what was written')
    assert 'config.json was changed' in lines[2] and 'model.heads' in lines[2]
