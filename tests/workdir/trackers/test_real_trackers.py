"""Tests the real packages, each in its own process and without a network: a run of two starts becomes one entry."""

import json
import os
import sqlite3
from pathlib import Path

import pytest

from efficient_attention.workdir.trackers import separate_process
from efficient_attention.workdir.trackers.all_trackers import open_trackers
from efficient_attention.workdir.trackers.tracker import TrackedRun

CONFIG = {'train.steps': 9, 'data.source': 'text:a.txt', 'model.layer_heads': [1, 2]}


@pytest.fixture
def workdir(tmp_path, monkeypatch) -> Path:
    """Returns the folder of a run, in an environment without settings of the user."""
    for name in [name for name in os.environ if name.startswith(('WANDB_', 'TRACKIO_', 'MLFLOW_'))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv('WANDB_MODE', 'offline')
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(separate_process, 'FINISH_SECONDS', 120.0)
    return tmp_path / 'run'


def track_two_starts(name: str, workdir: Path) -> list[str]:
    """Logs steps 10 to 30 and an evaluation, then resumes at step 20, and returns the printed lines."""
    lines: list[str] = []
    for start_step, steps in ((0, (10, 20, 30)), (20, (30, 40))):
        run = TrackedRun(workdir, CONFIG, start_step)
        with open_trackers((name,), run, lines.append) as trackers:
            for step in steps:
                trackers.log(step, 'train', {'loss': 1 / step + start_step})
            trackers.log(20, 'held_out', {'loss': 0.5})
    return lines


def only_the_workdir_was_written(folder: Path) -> bool:
    return {path.name for path in folder.iterdir()} <= {'run', 'home'}


EXPECTED = [(10, 0.1), (20, 0.05), (30, pytest.approx(1 / 30)), (40, pytest.approx(20.025))]


def test_mlflow_has_one_run_with_each_step_once(workdir, tmp_path, capfd):
    first, second = track_two_starts('mlflow', workdir)
    assert first == second and first.startswith('tracker mlflow: run ')
    (loss,) = workdir.glob('mlflow/*/*/metrics/train/loss')
    lines = [line.split() for line in loss.read_text().splitlines()]
    assert [(int(step), float(value)) for _, value, step in lines] == EXPECTED
    (parameter,) = workdir.glob('mlflow/*/*/params/train.steps')
    assert parameter.read_text() == '9'
    assert capfd.readouterr() == ('', '') and only_the_workdir_was_written(tmp_path)


def test_trackio_has_one_run_with_each_step_once(workdir, tmp_path, capfd):
    first, second = track_two_starts('trackio', workdir)
    assert first == second and first.startswith('tracker trackio: run run-')
    (database,) = workdir.glob('trackio/*.db')
    with sqlite3.connect(database) as connection:
        rows = connection.execute('SELECT run_name, step, metrics FROM metrics ORDER BY step').fetchall()
    connection.close()
    assert len({name for name, _, _ in rows}) == 1
    losses = [(step, json.loads(text)['train/loss']) for _, step, text in rows if 'train/loss' in text]
    assert losses == EXPECTED
    assert [step for _, step, text in rows if 'held_out/loss' in text] == [20]
    assert capfd.readouterr() == ('', '') and only_the_workdir_was_written(tmp_path)


def test_wandb_has_two_offline_folders_of_one_run_with_each_step_once(workdir, tmp_path, capfd):
    first, second = track_two_starts('wandb', workdir)
    print(first, second)
    assert 0
