"""Tests how measure_joint_stops.py judges the ends of a run's processes, by the table of docs/reliability.md."""

import contextlib
import json
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from efficient_attention.errors import InputError, RunError
from efficient_attention.processes import phase_log
from scripts.stress import measure_joint_stops as script
from scripts.stress.measure_joint_stops import StopResult
from scripts.stress.signal_moments import SignalMoment

SAVED = 'stopped after step 5, which is saved; the same command goes on from there'
NOTHING = 'stopped by SIGTERM; there was nothing to save'
OTHERS = f'error: process 1 (host a, pid 7) failed: {NOTHING}'
CLEAN = StopResult('SIGTERM', [1], 'step', 0.5, [3, 3], [])


@pytest.mark.parametrize(
    'phase, codes, errors, saved, expected',
    [
        ('step', [3, 3], [SAVED, ''], 5, []),
        ('evaluation', [3, 3], [f'step 4/30  loss 1\n{SAVED}', ''], 4, ['step 4 is saved, and the last line is']),
        ('end', [0, 0], ['', ''], 30, []),
        ('end', [0, 0], ['', ''], 25, ['exit code 0, and step 30 is not saved']),
        ('preparation', [4, 143], [OTHERS, NOTHING], None, []),
        ('save', [4, 143], [OTHERS, NOTHING], None, ['exit codes [4, 143]']),
        # the signal went to process 1, whose code must be 143
        ('compilation', [143, 4], ['', ''], None, ['exit codes [143, 4]']),
        ('save', [3, None], [SAVED, ''], 5, ['process 1 did not end', 'exit codes [3, None]']),
        ('step', [3, 3], [SAVED, 'Traceback'], 5, ['process 1 said: Traceback']),
    ],
)
def test_what_is_not_as_documented_is_named(
    phase: str,
    codes: Sequence[int | None],
    errors: Sequence[str],
    saved: int | None,
    expected: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
):
    monkeypatch.setattr(script, 'newest_saved_step', lambda _: saved)
    for number, text in enumerate(errors):
        (tmp_path / f'stderr-{number}').write_text(text)
        (tmp_path / f'stdout-{number}').touch()
    found = script.stop_faults(tmp_path, signal.SIGTERM, [1], phase, codes)
    assert len(found) == len(expected)
    assert all(fault.startswith(start) for fault, start in zip(found, expected, strict=True))


def test_those_that_do_not_end_are_killed_and_have_no_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Two shells imitate processes: one ends at the signal, the other waits for ever."""
    monkeypatch.setattr(script, 'HANGING_SECONDS', 0.5)

    def launch(folder: Path, _name: str, count: int) -> list[subprocess.Popen]:
        for number in range(count):
            (folder / f'phases-{number}').write_text('1.0 step 3\n')
            (folder / f'stderr-{number}').touch()
            (folder / f'stdout-{number}').touch()
        words = ['trap "exit 3" TERM; while true; do sleep 0.02; done', 'trap "" TERM; while true; do sleep 0.1; done']
        return [subprocess.Popen(['bash', '-c', word]) for word in words]

    monkeypatch.setattr(script, 'launch_processes', launch)
    stop = script.stop_once(tmp_path, signal.SIGTERM, [0], SignalMoment(phase_log.STEP, 1, 0.3), 2)
    assert stop and (stop.phase, stop.codes[1]) == ('step', None) and 'process 1 did not end' in stop.faults


def test_a_stop_that_is_not_clean_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys):
    monkeypatch.setattr(script.sys, 'argv', ['measure_joint_stops.py', f'--folder={tmp_path}'])
    for stops, fault in [([CLEAN], ''), ([CLEAN, CLEAN._replace(faults=['exit codes [4, 4]'])], '1 of 2 stop')]:
        monkeypatch.setattr(script, 'stop_all_runs', lambda *_, found=stops: found)
        with pytest.raises(RunError, match=fault) if fault else contextlib.nullcontext():
            script.main()
        result = json.loads(capsys.readouterr().out)
        assert result['phases']['step']['stops'] == len(stops) and len(result['not_clean']) == bool(fault)


def test_a_phase_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(script.sys, 'argv', ['measure_joint_stops.py', f'--folder={tmp_path}', '--phases=sleep'])
    with pytest.raises(InputError, match=re.escape("--phases: there is no 'sleep'; known: imports, ")):
        script.main()
