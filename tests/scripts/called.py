"""Scripts that run in the process of the tests: to start another takes a second or more."""

import runpy
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / 'scripts'


def refusal_of(script: str, *arguments: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> str:
    """What a script of this name says of arguments that it refuses, on standard error; its exit code is 2."""
    monkeypatch.setattr(sys, 'argv', [script, *arguments])
    with pytest.raises(SystemExit) as exited:
        runpy.run_path(str(SCRIPTS / script), run_name='__main__')
    assert exited.value.code == 2
    return capfd.readouterr().err
