"""Tests simulated power cuts: the error line where they are impossible, and their results where they are possible."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
IS_POSSIBLE = os.geteuid() == 0 and Path('/dev/loop-control').exists() and shutil.which('mkfs.ext4') is not None


@pytest.mark.parametrize(
    ('arguments', 'line'),
    [([], 'simulated power cuts mount file systems: they need Linux and root'), (['--ages', '1,x'], "--ages is '1,x'")],
)
def test_what_is_missing_is_one_line(monkeypatch, capsys, arguments: list[str], line: str):
    monkeypatch.setattr(os, 'geteuid', lambda: 1000)
    monkeypatch.setattr(sys, 'argv', ['power_cuts.py', *arguments])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(ROOT / 'scripts' / 'stress' / 'power_cuts.py'), run_name='__main__')
    errors = capsys.readouterr().err
    assert caught.value.code == 2 and errors.startswith(f'error: {line}') and errors.count('\n') == 1


@pytest.mark.slow
@pytest.mark.skipif(not IS_POSSIBLE, reason='needs root and loop devices')
@pytest.mark.parametrize(('arguments', 'end'), [([], '1 of 1 come back'), (['--control'], '0 of 1 come back')])
def test_a_cut_right_after_the_report(arguments: list[str], end: str):
    command = [sys.executable, 'scripts/stress/power_cuts.py', '--ages', '0.1', '--trials', '1', *arguments]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == end
