"""Tests that measure_stops.py stops a process in the planned phase, counts the stops, and compares the runs."""

import contextlib
import signal
from pathlib import Path

import pytest

from efficient_attention.errors import RunError
from efficient_attention.processes import phase_log
from scripts.stress import measure_stops as script
from scripts.stress.measure_stops import StopResult
from scripts.stress.signal_moments import PhaseSpan, SignalMoment

# Records the phase 'imports'; at SIGTERM ends with one line and exit code 143 a moment later.
PROGRAM = (
    'trap \'sleep 0.2; echo "stopped by SIGTERM; there was nothing to save" >&2; exit 143\' TERM; '
    f'echo "1.5 imports 0" >> ${phase_log.VARIABLE}; while true; do sleep 0.05; done'
)
SPANS = [PhaseSpan('start', 0.0, 1.0), PhaseSpan('imports', 1.0, 2.0), PhaseSpan('step', 2.0, 3.0)]
CLEAN = StopResult('SIGTERM', 'step', 0.5, 0.25, 3, [], '')


def program(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Runs a shell program in place of the training."""
    monkeypatch.setattr(script, 'training_command', lambda _: ['bash', '-c', text])


def test_a_stop_is_what_the_process_said_and_how_it_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    program(monkeypatch, PROGRAM)
    stop = script.stop_once(tmp_path, signal.SIGTERM, SignalMoment('imports', 1, 0.0))
    assert stop and (stop.name, stop.phase, stop.code, stop.faults) == ('SIGTERM', 'imports', 143, [])
    assert 0.2 <= stop.seconds == stop.beyond < 30 and stop.said.startswith('stopped by SIGTERM')


def test_a_signal_that_a_process_swallows_is_a_stop_that_is_not_clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    program(monkeypatch, f'trap "" TERM; echo "1.5 imports 0" >> ${phase_log.VARIABLE}; sleep 0.5')
    stop = script.stop_once(tmp_path, signal.SIGTERM, SignalMoment('imports', 1, 0.0))
    assert stop and stop.faults == ['exit code 0']


def test_a_process_that_has_ended_got_no_signal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    program(monkeypatch, 'true')
    assert script.stop_once(tmp_path, signal.SIGTERM, SignalMoment('imports', 1, 0.0)) is None


def test_runs_are_stopped_until_they_are_finished_and_then_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    bad = CLEAN._replace(phase='imports', beyond=6.0, faults=['6.0 s after'])
    outcomes, asked, finished, compared = iter([CLEAN, bad, None, CLEAN, CLEAN]), [], [], []
    differing = iter([[], ['a line is missing']])

    def stop_once(folder: Path, number: signal.Signals, moment: SignalMoment) -> StopResult | None:
        (folder / 'stopped').mkdir(exist_ok=True)
        asked.append((number, moment.phase))
        return next(outcomes)

    def differences(*folders: Path, was_stopped: bool) -> list[str]:
        compared.append((*folders, was_stopped))
        return next(differing)

    monkeypatch.setattr(script, 'STOPS_EACH', (3, 3))
    monkeypatch.setattr(script, 'stop_once', stop_once)
    monkeypatch.setattr(script, 'run_to_end', lambda folder, name: finished.append((folder, name)))
    monkeypatch.setattr(script, 'folder_differences', differences)
    stops, lines = script.stop_and_resume_runs(tmp_path, 4, 0, SPANS)
    assert stops == [CLEAN, bad, CLEAN, CLEAN] and lines == [[], ['a line is missing']]
    assert {phase for _, phase in asked} == {'imports', 'step'} and len({number for number, _ in asked}) == 2
    assert finished == 2 * [(tmp_path, 'stopped')]
    assert compared == 2 * [(tmp_path / 'stopped' / 'run', tmp_path / 'unbroken' / 'run', True)]
    result = script.summary(stops, lines, SPANS)
    assert {phase: found['stops'] for phase, found in result['phases'].items()} == {'imports': 1, 'step': 3}
    assert (result['all']['codes'], result['all']['beyond_longest'], len(result['not_clean'])) == ({3: 4}, 6.0, 1)
    assert (result['runs_finished'], result['runs_equal_to_the_unbroken'], result['not_hit']) == (2, 1, [])


def test_what_is_not_clean_not_equal_or_never_hit_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys):
    imports, slow = CLEAN._replace(phase='imports'), CLEAN._replace(faults=['6.0 s after'])
    monkeypatch.setattr(script.sys, 'argv', ['measure_stops.py', f'--folder={tmp_path}'])
    monkeypatch.setattr(script, 'measure_uninterrupted_run', lambda _: SPANS)
    cases = [([imports, CLEAN], [], ''), ([slow], [], '1 stop'), ([CLEAN], ['a line'], '1 difference')]
    for stops, lines, said in [*cases, (20 * [CLEAN], [], 'no stop hit: imports')]:
        monkeypatch.setattr(script, 'stop_and_resume_runs', lambda *_, found=(stops, [lines]): found)
        with pytest.raises(RunError, match=said) if said else contextlib.nullcontext():
            script.main()
    out = capsys.readouterr().out
    assert out.count('"stops": ') >= 4 and out.count('50 stops take about 2.5 minutes') == 4


def test_a_run_that_does_not_come_to_its_end_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    program(monkeypatch, 'echo no >&2; exit 2')
    with pytest.raises(RunError, match='the stopped run ended with 2: no'):
        script.run_to_end(tmp_path, 'stopped')
