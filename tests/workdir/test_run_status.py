"""Tests the state of a run in `status.json`: across starts, after errors, after a kill, and from damaged files."""

import dataclasses
import json
import subprocess
import sys

import pytest

from efficient_attention.errors import InputError, RunStopped
from efficient_attention.workdir import run_status
from efficient_attention.workdir.run_status import (
    COMPLETE,
    FAILED,
    KILLED,
    RUNNING,
    STOPPED,
    read_status,
    record_end,
    record_start,
    record_still_running,
)


def test_durations_of_all_starts_add_up(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(run_status.time, 'time', lambda: now[0])
    record_start(tmp_path)
    now[0] = 1060.0
    record_still_running(tmp_path)
    assert read_status(tmp_path).current_state == RUNNING
    now[0] = 1600.0  # killed, and started again later: the time after the last record is unknown
    record_start(tmp_path)
    now[0] = 1610.0
    record_end(tmp_path, None)
    status = read_status(tmp_path)
    assert (status.state, status.starts, status.seconds) == (COMPLETE, 2, 70.0)
    assert (status.first_started, status.started, status.seen) == (1000.0, 1600.0, 1610.0)


@pytest.mark.parametrize(
    'error, state, said',
    [
        (RunStopped(), STOPPED, ''),
        (KeyboardInterrupt(), STOPPED, ''),
        (InputError('a\nbad file'), FAILED, 'InputError: a bad file'),
    ],
)
def test_an_error_is_named(tmp_path, error, state, said):
    record_end(tmp_path, error)
    assert read_status(tmp_path) is None, 'a run that never began has no state'
    record_start(tmp_path)
    record_end(tmp_path, error)
    assert (read_status(tmp_path).state, read_status(tmp_path).error) == (state, said)


def test_a_run_whose_process_is_gone_was_killed(tmp_path):
    record_start(tmp_path)
    gone = subprocess.Popen([sys.executable, '-c', ''])
    gone.wait()
    status = dataclasses.replace(read_status(tmp_path), process=gone.pid)
    assert status.current_state == KILLED
    assert dataclasses.replace(status, host='another').current_state == RUNNING, 'other hosts cannot be asked'
    assert dataclasses.replace(status, state=COMPLETE).current_state == COMPLETE


@pytest.mark.parametrize(
    'change', [{'process': 'x'}, {'seen': 1e300}, {'seen': -1}, {'starts': True}, {'more': 1}, {'error': None}]
)
def test_a_damaged_file_is_no_state_and_a_new_start_replaces_it(tmp_path, change):
    record_start(tmp_path)
    path = tmp_path / 'status.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert read_status(tmp_path) is None
    path.write_text('{')
    assert read_status(tmp_path) is None
    record_start(tmp_path)
    assert read_status(tmp_path).starts == 1
