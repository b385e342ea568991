"""Tests the picture of a run's metric."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from efficient_attention.errors import InputError
from scripts.plot_metrics import read_metric_series

ROOT = Path(__file__).resolve().parent.parent.parent
ROWS = [
    {'step': 10, 'split': 'train', 'masked_lm_loss': 5.0},
    {'step': 20, 'split': 'train', 'masked_lm_loss': 4.0},
    {'step': 20, 'split': 'held_out', 'masked_lm_loss': 4.5, 'masked_lm_unigram_loss': 6.0},
]


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    (tmp_path / 'metrics.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in ROWS), encoding='utf-8')
    return tmp_path


def test_lines_and_baseline(workdir: Path):
    lines, baseline = read_metric_series(workdir, 'masked_lm_loss')
    assert lines == {'train': ([10, 20], [5.0, 4.0]), 'held_out': ([20], [4.5])}
    assert baseline == 6.0


def test_one_split_alone(workdir: Path):
    assert read_metric_series(workdir, 'masked_lm_loss', 'held_out')[0] == {'held_out': ([20], [4.5])}
    with pytest.raises(InputError, match="no split 'test' of masked_lm_loss; known: train, held_out"):
        read_metric_series(workdir, 'masked_lm_loss', 'test')


def test_an_unknown_metric_lists_the_known_ones(workdir: Path):
    with pytest.raises(InputError, match="no metric 'los'; known: masked_lm_loss, masked_lm_unigram_loss"):
        read_metric_series(workdir, 'los')


def test_command_writes_an_svg(workdir: Path):
    output = workdir / 'pictures' / 'loss.svg'
    command = [sys.executable, 'scripts/plot_metrics.py', 'masked_lm_loss', str(output), str(workdir)]
    subprocess.run(command, cwd=ROOT, check=True, env={'PYTHONPATH': str(ROOT)})
    assert output.read_text(encoding='utf-8').startswith('<svg')
