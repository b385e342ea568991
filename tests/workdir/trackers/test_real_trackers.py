"""Tests the real packages, each in its own process and without a network: a run of two starts becomes one entry."""

import contextlib
import json
import os
import re
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
    """Logs steps 10, 20 (with an evaluation) and 30, resumes at step 20 up to step 40, and returns the printed lines.

    Repeated steps have other numbers here, so that a number shows which start has logged it.
    """
    lines: list[str] = []
    for start_step, steps in ((0, (10, 20, 30)), (20, (20, 30, 40))):
        with open_trackers((name,), TrackedRun(workdir, CONFIG, start_step), lines.append) as trackers:
            for step in steps:
                if step > start_step:
                    trackers.log(step, 'train', {'loss': step / 8 + start_step})
                if step == 20:
                    trackers.log(step, 'held_out', {'loss': 0.5})
    return lines


EXPECTED = [(10, 1.25), (20, 2.5), (30, 3.75), (40, 25.0)]


def test_mlflow_has_one_run_with_each_step_once(workdir, tmp_path, capfd):
    first, second = track_two_starts('mlflow', workdir)
    assert first == second and first.startswith('tracker mlflow: run ')
    (loss,) = workdir.glob('mlflow/*/*/metrics/train/loss')
    lines = [line.split() for line in loss.read_text().splitlines()]
    assert [(int(step), float(value)) for _, value, step in lines] == EXPECTED
    (loss,) = workdir.glob('mlflow/*/*/metrics/held_out/loss')
    assert [line.split()[1:] for line in loss.read_text().splitlines()] == [['0.5', '20']]
    (parameter,) = workdir.glob('mlflow/*/*/params/train.steps')
    assert parameter.read_text() == '9'
    assert capfd.readouterr() == ('', '') and [path.name for path in tmp_path.iterdir()] == ['run']


def test_trackio_has_one_run_with_each_step_once(workdir, tmp_path, capfd):
    first, second = track_two_starts('trackio', workdir)
    assert first == second and first.startswith('tracker trackio: run run-')
    (database,) = workdir.glob('trackio/*.db')
    with contextlib.closing(sqlite3.connect(database)) as connection:
        rows = connection.execute('SELECT run_name, step, metrics FROM metrics ORDER BY step').fetchall()
    assert len({name for name, _, _ in rows}) == 1
    logged = [(step, json.loads(text)) for _, step, text in rows]
    assert [(step, found['train/loss']) for step, found in logged if 'train/loss' in found] == EXPECTED
    assert [(step, found['held_out/loss']) for step, found in logged if 'held_out/loss' in found] == [(20, 0.5)]
    assert capfd.readouterr() == ('', '') and [path.name for path in tmp_path.iterdir()] == ['run']


def losses_of(records: bytes) -> set[tuple[bytes, bytes]]:
    """Returns the split and the value of each loss; the byte before a value is its length."""
    starts = re.finditer(rb'(\w+)/loss\x82\x01(.)', records, re.DOTALL)
    return {(start[1], records[start.end() : start.end() + start[2][0]]) for start in starts}


def test_wandb_has_one_run_with_each_step_once(workdir, tmp_path, capfd):
    first, second = track_two_starts('wandb', workdir)
    assert first.startswith(f'tracker wandb: offline in {workdir}/wandb/offline-run-') and first != second
    records = sorted(workdir.glob('wandb/offline-run-*/run-*.wandb'))
    assert len({path.name for path in records}) == 1  # both folders belong to one run
    # Each step is in one row of the history, and in one update of the summary. An item is protobuf: fields 2 (name) and
    # 16 (JSON value).
    steps = [re.findall(rb'_step\x82\x01\x02(\d\d)', path.read_bytes()) for path in records]
    assert [*map(sorted, steps)] == [[b'10', b'10', b'20', b'20', b'30', b'30'], [b'40', b'40']]
    values = [losses_of(path.read_bytes()) for path in records]
    assert values[0] == {(b'train', b'1.25'), (b'train', b'2.5'), (b'train', b'3.75'), (b'held_out', b'0.5')}
    assert values[1] == {(b'train', b'25')}
    assert capfd.readouterr() == ('', '') and [path.name for path in tmp_path.iterdir()] == ['run']
