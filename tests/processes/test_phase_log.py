"""Tests that phases are recorded only if a file for them is named, and that a small run records them in their order."""

import subprocess
import sys

from efficient_attention.processes import phase_log


def test_nothing_is_noted_without_the_variable(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(phase_log, '_path', None)
    phase_log.note_phase(phase_log.STEP)
    assert list(tmp_path.iterdir()) == []


def test_each_phase_is_a_line_with_its_time(tmp_path, monkeypatch):
    monkeypatch.setattr(phase_log, '_path', str(tmp_path / 'phases'))
    phase_log.note_phase(phase_log.STEP)
    phase_log.note_phase(phase_log.SAVE, 7)
    (first, *step), (second, *save) = [line.split() for line in (tmp_path / 'phases').read_text().splitlines()]
    assert (step, save) == (['step', '0'], ['save', '7']) and 0 < float(first) <= float(second)


def test_an_entry_point_notes_its_imports_first(tmp_path, monkeypatch):
    monkeypatch.setenv(phase_log.VARIABLE, str(tmp_path / 'phases'))
    program = 'from efficient_attention.processes.signal_thread import catch_stop_signals; catch_stop_signals()'
    subprocess.run([sys.executable, '-c', program], check=True)
    assert (tmp_path / 'phases').read_text().split()[1:] == ['imports', '0']
