"""Tests masks filled by a Hugging Face folder from the command line; tests/test_entry_points.py tests runs and bad
input.
"""

import runpy
import sys
from pathlib import Path

import pytest

from tests.inference.tiny_checkpoint import WORDS, write_checkpoint

SCRIPT = Path(__file__).resolve().parents[2] / 'scripts' / 'fill_mask.py'


def test_a_hugging_face_folder_fills_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    model = write_checkpoint(tmp_path / 'model', 'fill_mask')
    text = f'{WORDS[0]} [MASK] {WORDS[1]} [MASK]'
    monkeypatch.setattr(sys, 'argv', ['fill_mask.py', '--model', str(model), text, '--top', '3'])
    runpy.run_path(str(SCRIPT), run_name='__main__')
    said, *masks = capsys.readouterr().out.splitlines()
    assert said == text and [line[:10] for line in masks] == ['  mask 1: ', '  mask 2: ']
    assert [line.count('%') for line in masks] == [3, 3]
