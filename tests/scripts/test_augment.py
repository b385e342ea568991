"""Tests scripts/augment.py from the command line."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from tests.inference.tiny_checkpoint import write_checkpoint

SCRIPT = Path(__file__).resolve().parents[2] / 'scripts' / 'augment.py'


def test_it_writes_the_file_and_says_how_many_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    model = write_checkpoint(tmp_path / 'filler', 'fill_mask')
    (tmp_path / 'rows.csv').write_text('review,label\nthe king sleeps,1\n')
    words = ['--model', str(model), '--input', str(tmp_path / 'rows.csv'), '--output', str(tmp_path / 'more.csv')]
    monkeypatch.setattr(sys, 'argv', [str(SCRIPT), *words, '--set', 'text=review', '--copies', '5'])
    runpy.run_path(str(SCRIPT), run_name='__main__')
    [*_, last] = capsys.readouterr().out.splitlines()
    lines = (tmp_path / 'more.csv').read_text().splitlines()
    assert json.loads(last) == {'rows': 1, 'written': len(lines) - 1, 'notes': []} and len(lines) > 2
