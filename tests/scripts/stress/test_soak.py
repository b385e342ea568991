"""Tests scripts/stress/soak.py: a run that is killed twice ends like one that is never killed."""

import os
import random

import pytest

from efficient_attention.errors import RunError
from efficient_attention.processes import phase_log
from scripts.stress import soak
from scripts.stress.signal_moments import PhaseEvent, SignalMoment
from scripts.stress.soak import ProcessResult, run_or_kill, run_to_end, unfinished_files
from tests.quick_compile import FLAGS

# Records a phase in the format of `efficient_attention/processes/phase_log.py`, and waits.
NOTES = 'echo said >&2; echo "1.5 imports 0" >> $' + phase_log.VARIABLE + '; exec sleep 60'


class FirstOccurrences(random.Random):
    """Draws the smallest value of each range, so that a killed run soon reaches the next kill."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return 0 if stop is None else super().randrange(start, stop, step)


@pytest.mark.parametrize('kills', [2, pytest.param(3, marks=pytest.mark.slow)])
def test_kills_leave_no_trace(tmp_path, monkeypatch, kills: int):
    monkeypatch.setenv('XLA_FLAGS', FLAGS)  # a process with eight emulated devices takes half as long again
    only = (phase_log.EVALUATION, phase_log.SAVE, phase_log.SEALING)
    small = ('--config.train.steps=20', '--config.model.layers=1')
    found = soak.kill_and_compare('memory', tmp_path / 'memory', kills, FirstOccurrences(0), *small, only=only)
    assert found['differences'] == [] and found['kills'] == kills == sum(found['hit'].values())
    assert set(found['hit']) & set(only)  # at least one kill hits a planned phase; others may come late
    assert found['seconds_to_step']['resumed'] > 0


def test_a_command_that_fails_or_hangs_is_an_error(monkeypatch, tmp_path):
    with pytest.raises(RunError, match='ended with exit code 3: no'):
        run_to_end(['bash', '-c', 'echo no >&2; exit 3'], tmp_path / 'phases')
    monkeypatch.setattr(soak, 'HANGING_SECONDS', 3.0)
    with pytest.raises(RunError, match='did not end in 3 s: still here'):
        run_to_end(['bash', '-c', 'echo still here >&2; exec sleep 60'], tmp_path / 'phases')


def test_a_process_is_killed_in_the_phase_that_was_planned(tmp_path):
    ended = run_or_kill(['bash', '-c', NOTES], tmp_path / 'phases', SignalMoment('imports', 1, 0.1))
    assert (ended.code, ended.lines, ended.events) == (soak.KILLED, ['said'], [PhaseEvent(1.5, 'imports', 0)])
    assert run_or_kill(['true'], tmp_path / 'phases', SignalMoment('imports', 1, 0.1)).code == 0


def test_the_first_step_ends_where_the_next_phase_begins():
    events = [
        PhaseEvent(2.0, 'compilation', 1),
        PhaseEvent(2.5, 'compilation', 1),
        PhaseEvent(7.0, 'input', 2),
        PhaseEvent(8.0, 'step', 2),
    ]
    assert ProcessResult(0, [], 1.0, 9.0, events).seconds_to_first_step == 6.0
    assert ProcessResult(0, [], 1.0, 9.0, []).seconds_to_first_step == 8.0


def test_what_is_left_half_written_is_named(tmp_path):
    (tmp_path / 'run' / 'checkpoints' / '5.orbax-checkpoint-tmp-17').mkdir(parents=True)
    (tmp_path / '.partial-host-17-0a').touch()
    assert unfinished_files(tmp_path) == [
        f'{tmp_path}/.partial-host-17-0a was left behind',
        f'{tmp_path}/run/checkpoints/5.orbax-checkpoint-tmp-17 was left behind',
    ]


@pytest.mark.parametrize('missed', [[], ['sealing']])
def test_a_phase_that_no_kill_hit_is_said(monkeypatch, tmp_path, capsys, missed):
    result = {'kills': 50, 'not_hit': missed, 'differences': []}
    monkeypatch.setattr(soak, 'kill_and_compare', lambda *_: result)
    monkeypatch.setattr(soak.sys, 'argv', ['soak.py', f'--workdir={tmp_path}', '--runs=memory', '--kills=50'])
    if missed:
        with pytest.raises(RunError, match='no kill of memory hit: sealing'):
            soak.main()
    else:
        soak.main()
    assert os.linesep in capsys.readouterr().out
