"""Runs scripts inside the process of the tests, because a new process takes a second or more to start."""

import runpy
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / 'scripts'


def refusal_of(script: str, *arguments: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> str:
    """Runs a script with arguments that it refuses with exit code 2; returns its standard error."""
    monkeypatch.setattr(sys, 'argv', [script, *arguments])
    with pytest.raises(SystemExit) as exited:
        runpy.run_path(str(SCRIPTS / script), run_name='__main__')
    assert exited.value.code == 2
    return capfd.readouterr().err
