"""Tests that a checkpoint's own evaluation counts, whatever metrics.jsonl says."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from efficient_attention.config.checkpoint import CheckpointConfig
from efficient_attention.errors import InputError
from efficient_attention.workdir.checkpoint_reader import CheckpointReader, read_best_evaluation
from efficient_attention.workdir.checkpoint_writer import CheckpointWriter
from efficient_attention.workdir.metrics import nonfinite_as_text
from efficient_attention.workdir.stored_evaluations import (
    EVALUATIONS,
    LATER,
    pick_best_evaluation,
    read_evaluations_until_step,
    read_late_evaluation,
    write_late_evaluation,
)
from tests.workdir.test_checkpoint_writer import make_state

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
    write_log(tmp_path, LINES)
    best = read_best_evaluation(tmp_path, CheckpointConfig(best_metric=metric, best_mode=mode))
    assert best == {name: value for name, value in LINES[step].items() if name != 'split'}


def test_an_evaluation_before_the_last_pruning_is_not_the_best(tmp_path: Path):
    lines = [
        {'step': 4, 'split': 'held_out', 'f1': 0.9, 'still_pruning': 1.0},
        {'step': 8, 'split': 'held_out', 'f1': 0.8},
    ]
    write_log(tmp_path, lines)
    assert read_best_evaluation(tmp_path, CheckpointConfig(best_metric='f1', best_mode='max'))['step'] == 8


def test_without_an_evaluation_there_is_no_best(tmp_path: Path):
    assert read_best_evaluation(tmp_path, CheckpointConfig(best_metric='f1')) == {}


def write_log(workdir: Path, lines: list[dict[str, Any]]) -> None:
    (workdir / 'metrics.jsonl').write_text(''.join(json.dumps(nonfinite_as_text(line)) + '\n' for line in lines))


BEST = CheckpointConfig(best_metric='f1', best_mode='max', keep=3)


def save(workdir: Path, *records: dict[str, Any]) -> None:
    with CheckpointWriter(workdir, BEST) as checkpoints:
        for step, record in enumerate(records, 1):
            checkpoints.save(step, make_state(step), record=record)


def test_a_checkpoint_tells_of_the_evaluations_before_it_whatever_the_log_says(tmp_path: Path):
    evaluations = [line for line in LINES[1:4]]
    save(tmp_path, {}, {}, {EVALUATIONS: evaluations})
    write_log(tmp_path, [{'step': 2, 'split': 'held_out', 'f1': 0.99}])
    assert CheckpointReader(tmp_path).evaluations() == evaluations
    assert read_best_evaluation(tmp_path, BEST) == {'step': 3, 'f1': 0.75, 'loss': 4.0}


def test_a_record_from_before_leaves_them_to_the_log(tmp_path: Path):
    save(tmp_path, {})
    write_log(tmp_path, LINES[:3])
    assert CheckpointReader(tmp_path).evaluations() == [LINES[1]]
    assert CheckpointReader(tmp_path).metrics_of_step(1) == {'f1': 0.5, 'loss': 3.0}


def test_an_evaluation_after_the_save_lies_beside_its_step_and_goes_with_it(tmp_path: Path):
    save(tmp_path, {EVALUATIONS: []}, {EVALUATIONS: []})
    write_log(tmp_path, [{'step': 2, 'split': 'held_out', 'f1': 0.99}])
    reader = CheckpointReader(tmp_path)
    assert reader.metrics_of_step(2) == {} and reader.best_step('f1', 'max') is None
    with CheckpointWriter(tmp_path, BEST) as checkpoints:
        checkpoints.write_evaluation_metrics(2, {'f1': 0.5, 'loss': math.nan})
    assert reader.metrics_of_step(2) == {'f1': 0.5} and reader.best_step('f1', 'max') == 2
    record = reader.read_record(2)
    assert [line['f1'] for line in read_evaluations_until_step(reader.folder, 2, record)] == [0.5]
    with CheckpointWriter(tmp_path, CheckpointConfig(keep=1)) as checkpoints:
        checkpoints.save(3, make_state(3), record={EVALUATIONS: []})
    assert sorted(path.name for path in reader.folder.iterdir() if path.name[0].isdigit()) == ['3']


def test_an_evaluation_that_was_changed_counts_for_nothing(tmp_path: Path):
    write_late_evaluation(tmp_path, 2, {'f1': 0.5})
    assert read_late_evaluation(tmp_path, 2) == {'step': 2, 'split': 'held_out', 'f1': 0.5}
    path = tmp_path / f'2{LATER}'
    path.write_text(path.read_text().replace('0.5', '0.6'))
    assert read_late_evaluation(tmp_path, 2) == read_late_evaluation(tmp_path, 3) == {}


@pytest.mark.parametrize('bad', [3, [3], [{'step': 1}], {'a': 1}])
def test_a_record_with_something_else_is_one_line(tmp_path: Path, bad: Any):
    with pytest.raises(InputError, match=f'^checkpoint {tmp_path}/2: its evaluations cannot be read'):
        read_evaluations_until_step(tmp_path, 2, {EVALUATIONS: bad})


def test_the_best_of_no_evaluation_is_none():
    assert pick_best_evaluation([], BEST) == {}
