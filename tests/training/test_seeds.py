"""The spread of a result over seeds: which evaluation counts, and the arithmetic."""

import json
import math
import statistics
from pathlib import Path

import pytest

from configs.common import default_config
from efficient_attention.errors import InputError
from efficient_attention.training.checkpoint import CheckpointConfig
from efficient_attention.training.seeds import best_evaluation, spread, table, train_seeds

LINES = [
    {'step': 1, 'split': 'train', 'f1': 9.0},
    {'step': 1, 'split': 'held_out', 'f1': 0.5, 'loss': 3.0},
    {'step': 2, 'split': 'held_out', 'f1': 0.3, 'loss': 2.0},
    {'step': 3, 'split': 'held_out', 'f1': 0.75, 'loss': 4.0},
    {'step': 4, 'split': 'held_out', 'f1': 0.25, 'loss': 5.0},
    {'step': 5, 'split': 'held_out', 'f1': math.nan, 'loss': math.nan},
]


@pytest.mark.parametrize('metric, mode, step', [('f1', 'max', 3), ('f1', 'min', 4), ('loss', 'min', 2)])
def test_the_best_evaluation_counts(tmp_path: Path, metric: str, mode: str, step: int):
    lines = ''.join(json.dumps(line).replace('NaN', '"nan"') + '\n' for line in LINES)
    (tmp_path / 'metrics.jsonl').write_text(lines)
    best = best_evaluation(tmp_path, CheckpointConfig(best_metric=metric, best_mode=mode))
    assert best == {name: value for name, value in LINES[step].items() if name != 'split'}


def test_mean_and_deviation():
    runs = [{'step': 5, 'f1': 0.5}, {'step': 9, 'f1': 0.7}, {'step': 2, 'f1': 0.9}]
    found = spread(runs)
    assert found['mean'] == pytest.approx({'f1': 0.7})
    assert found['deviation'] == pytest.approx({'f1': statistics.stdev([0.5, 0.7, 0.9])})
    assert spread(runs[:1])['deviation'] == {'f1': 0.0}
    lines = table({'seeds': dict(zip('012', runs, strict=True)), **found}).splitlines()
    assert lines[0].split() == 'metric seed 0 seed 1 seed 2 mean deviation'.split()
    assert lines[1].split() == ['f1', '0.5000', '0.7000', '0.9000', '0.7000', '0.2000']


@pytest.mark.parametrize('seeds', [[], ['0', '0'], ['one'], ['-1']])
def test_seeds_that_are_none(tmp_path: Path, seeds: list):
    with pytest.raises(InputError, match='^--seeds is .*; it must be different whole numbers with commas$'):
        train_seeds(default_config().to_dict(), tmp_path, seeds)
