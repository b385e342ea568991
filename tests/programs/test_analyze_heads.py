"""Tests the command line of `analyze-heads`."""

import json
import sys
from pathlib import Path

import pytest

from efficient_attention.inspection import head_analysis as analyze_heads_module
from efficient_attention.inspection import head_report
from efficient_attention.programs import analyze_heads
from tests.inference.tiny_checkpoint import write_checkpoint


def test_the_command_writes_data_and_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    (tmp_path / 'text.txt').write_text('the old dog sleeps .', encoding='utf-8')
    model = write_checkpoint(tmp_path, 'fill_mask')
    words = ['--model', str(model), '--text', str(tmp_path / 'text.txt'), '--output', str(tmp_path / 'heads')]
    monkeypatch.setattr(sys, 'argv', ['analyze-heads', *words, '--compared=0'])
    analyze_heads.main()
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {
        'page': str(tmp_path / 'heads.html'),
        'data': str(tmp_path / 'heads.json'),
    }
    found = json.loads((tmp_path / 'heads.json').read_text(encoding='utf-8'))
    assert len(found['heads']) == 2 and 'agreement' not in found and 'relations' not in found


def test_a_table_without_relations_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.setattr(analyze_heads_module, 'analyze_heads', lambda *_: {'relations': [], 'probe': {}})
    monkeypatch.setattr(head_report, 'write_head_report', lambda _, output: (output, output))
    words = ['--model', 'm', '--dependencies', 'a', 'b', '--least_cases', '7', '--output', str(tmp_path / 'heads')]
    monkeypatch.setattr(sys, 'argv', ['analyze-heads', *words])
    analyze_heads.main()
    assert 'no relation has 7 test cases; --least_cases sets another number\n' in capsys.readouterr().out
