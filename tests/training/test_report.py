"""The old name of a command still runs it, and says what it is now."""

import runpy
from pathlib import Path

import pytest


def test_the_old_name_says_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr('sys.argv', ['report.py', str(tmp_path)])
    with pytest.raises(SystemExit) as caught:
        runpy.run_module('efficient_attention.training.report', run_name='__main__')
    assert caught.value.code == 2  # the folder holds no run
    assert 'is now efficient_attention.workdir.report' in capsys.readouterr().err
