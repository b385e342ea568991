"""How a stop is judged: its line, its code, its seconds; and that stops are counted over runs that are finished."""

import contextlib
import random
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from efficient_attention.commands.stopping import Stopped, line_of
from efficient_attention.errors import RunError
from scripts import measure_stops as script
from scripts.measure_stops import Stop

# Ends at SIGTERM with one line and code 143, a moment later.
PROGRAM = """
import pathlib, signal, sys, time
def stop(number, frame):
    time.sleep(0.2)
    print('stopped by SIGTERM; there was nothing to save', file=sys.stderr)
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
print('working', file=sys.stderr, flush=True)
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""


def test_a_stop_is_what_the_process_said_and_how_it_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def until_it_works(moment: float) -> None:
        while not (tmp_path / 'begun').exists():
            time.sleep(0.01)
        assert moment == 1.5

    monkeypatch.setattr(script, 'time', SimpleNamespace(sleep=until_it_works, monotonic=time.monotonic))
    stop = script.stop_once([sys.executable, '-c', PROGRAM, str(tmp_path / 'begun')], signal.SIGTERM, 1.5)
    assert (stop.name, stop.code, stop.lines, stop.said) == ('SIGTERM', 143, 1, 'working')
    assert 0.2 <= stop.grace < 30 and stop.is_clean


def test_a_process_that_has_ended_got_no_signal():
    assert script.stop_once(['true'], signal.SIGTERM, 1.0) is None


@pytest.mark.parametrize(
    'code, lines, is_clean',
    [(3, 1, True), (130, 1, True), (-15, 0, True), (143, 2, False), (3, 0, False), (1, 1, False), (0, 0, True)],
)
def test_a_clean_stop_has_one_line_and_a_documented_code(code: int, lines: int, is_clean: bool):
    assert Stop('SIGTERM', 1.0, 0.5, code, lines, '').is_clean is is_clean


def test_a_signal_that_a_process_swallows_is_a_stop_that_is_not_clean(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(script, 'ENDING_SECONDS', 0.2)
    swallowing = ['bash', '-c', 'trap "" TERM; sleep 1.5']
    stop = script.stop_once(swallowing, signal.SIGTERM, 0.7)
    assert stop and (stop.code, stop.lines, stop.is_clean) == (0, 0, False)


def test_the_lines_of_a_stop_are_recognised():
    said = '\n'.join(
        ['step 3/9 stopped', line_of(signal.SIGINT), 'stopped after step 7, which is saved', 'interrupted']
    )
    assert len(script.LINES.findall(said)) == 3
    assert issubclass(Stopped, KeyboardInterrupt)


def test_runs_are_stopped_until_they_are_finished_and_then_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    found = [Stop('SIGTERM', 1.0, 0.5, 3, 1, ''), None, Stop('SIGINT', 1.0, 1.5, 130, 2, '')]
    outcomes, compared, differing = iter(found), [], iter([[], ['a line is missing']])
    monkeypatch.setattr(script, 'stop_once', lambda *_: next(outcomes))
    monkeypatch.setattr(script, 'finish', lambda folder: folder.mkdir())

    def differences(*folders: Path, was_stopped: bool) -> list[str]:
        compared.append((*folders, was_stopped))
        return next(differing)

    monkeypatch.setattr(script, 'differences', differences)
    stops, lines = script.stopped_runs(tmp_path, 2, random.Random(0), 9.0)
    assert stops == [found[0], found[2]] and lines == [[], ['a line is missing']]
    assert compared == 2 * [(tmp_path / 'stopped' / 'run', tmp_path / 'unbroken' / 'run', True)]
    summary = script.summary(stops, lines)
    assert (summary['codes'], summary['grace_longest'], len(summary['not_clean'])) == ({3: 1, 130: 1}, 1.5, 1)
    assert (summary['runs_finished'], summary['runs_equal_to_the_unbroken']) == (2, 1)


def test_a_stop_that_is_not_clean_or_a_run_that_differs_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys):
    clean, silent = Stop('SIGTERM', 1.0, 0.5, 3, 1, ''), Stop('SIGTERM', 1.0, 9.0, 0, 0, '')
    monkeypatch.setattr(script.sys, 'argv', ['measure_stops.py', f'--folder={tmp_path}'])
    monkeypatch.setattr(script, 'unbroken_run', lambda _: 1.0)
    for stop, lines in [(clean, []), (silent, []), (clean, ['a line is missing'])]:
        monkeypatch.setattr(script, 'stopped_runs', lambda *_, stop=stop, lines=lines: ([stop], [lines]))
        with contextlib.nullcontext() if stop is clean and not lines else pytest.raises(RunError, match='1 '):
            script.main()
    assert capsys.readouterr().out.count('"stops": 1') == 3
