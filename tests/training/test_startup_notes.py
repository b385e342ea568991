"""Tests which settings give a line at a run's start, and which do not."""

from types import SimpleNamespace
from typing import Any

import pytest

from configs.lm.common import language_modelling_config
from efficient_attention.config.dict_conversion import from_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.training.startup_notes import no_evaluation_note, unusual_setting_notes


def notes(rows: int | None = None, has_short_batches: bool = False, **fields: Any) -> list[str]:
    """Returns the lines of a run with these fields by dotted name, whose training data has `rows` examples."""
    groups: dict[str, dict[str, Any]] = {
        'train': {'steps': 100},
        'optimizer': {'warmup_steps': 10},
        'data': {},
        'prune': {},
        'model': {},
    }
    for name, value in fields.items():
        group, field = name.split('.')
        groups[group][field] = value
    task = SimpleNamespace(notes=['of the task'], rows_per_epoch=lambda: rows, has_short_batches=has_short_batches)
    return unusual_setting_notes(SimpleNamespace(config=from_dict(groups, RunConfig), task=task))


def test_a_batch_that_its_data_does_not_fill():
    line = 'each batch is partly empty: train.batch_size is 32, the data has 20 rows; lower train.batch_size, '
    line += 'since empty rows take time and teach nothing'
    assert notes(20, has_short_batches=True, **{'train.batch_size': 32}) == [line, 'of the task']
    assert notes(32, has_short_batches=True, **{'train.batch_size': 32}) == ['of the task']


def test_a_complete_run_does_not_plan_its_training_data():
    task = SimpleNamespace(notes=['of the task'])  # no rows_per_epoch: a call would plan the training data
    config = from_dict({'train': {'steps': 100, 'batch_size': 5_000}, 'optimizer': {'warmup_steps': 10}}, RunConfig)
    assert unusual_setting_notes(SimpleNamespace(config=config, task=task), is_complete=True) == ['of the task']


def test_a_test_split_is_something_to_be_evaluated_on():
    config = language_modelling_config()
    config.data.update({'held_out': 0.0, 'test': 0.1, 'splitting': 'end', 'units': 'bytes'})
    assert len(no_evaluation_note(from_dict(config.to_dict(), RunConfig))) == 1
    decoder = {'decoder_layers': 1, 'token_types': 0}
    pairs = from_dict({'task': 'text_to_text', 'model': decoder, 'pairs': {'train': 'toy:copy:4:2-3'}}, RunConfig)
    assert no_evaluation_note(pairs)[0].startswith(
        'no text is held out (pairs.held_out is empty): nothing is evaluated'
    )
    config.eval.split = 'test'
    assert no_evaluation_note(from_dict(config.to_dict(), RunConfig)) == []


@pytest.mark.parametrize(
    'rows, fields',
    [
        (None, {}),
        (32, {'train.batch_size': 32}),
        (None, {'train.batch_size': 10_000}),
        (None, {'train.steps': 1, 'optimizer.warmup_steps': 0}),
    ],
)
def test_a_run_as_it_should_be_has_the_lines_of_its_task_alone(rows: int | None, fields: dict):
    assert notes(rows, **fields) == ['of the task']


@pytest.mark.parametrize(
    'fields, line',
    [
        (
            {'optimizer.warmup_steps': 100},
            'this run ends in its warm-up and learns little: train.steps is 100, optimizer.warmup_steps 100; '
            'shorten it, such as --config.optimizer.warmup_steps=10',
        ),
        (
            {'train.batch_size': 5_000},
            'each batch reads the training data more than once: train.batch_size is 5,000, the data has 2,326 rows of '
            '128 tokens',
        ),
        (
            {'data.held_out': 0.0},
            'no text is held out (data.held_out=0): nothing is evaluated, and no checkpoint is the best one',
        ),
        (
            {'train.steps': 15, 'prune.method': 'magnitude', 'prune.begin': 0.2},
            'all pruning happens within 9 of 15 steps (prune.begin 0.2, prune.end 0.8); longer runs lose less accuracy',
        ),
        (
            {'train.steps': 15, 'prune.method': 'l0', 'prune.penalty': 1.0, 'prune.begin': 0.2},
            'the penalty reaches its full weight within 9 of 15 steps (prune.begin 0.2, prune.end 0.8); '
            'longer runs remove more',
        ),
        (
            {
                'train.steps': 1_500,
                'prune.method': 'movement',
                'prune.keep': 0.15,
                'prune.begin': 0.2,
                'prune.end': 0.6,
            },
            'movement pruning removes up to 0.42% of the weights in a step; runs this short have ended at one answer '
            'for all rows (docs/compression.md): train longer, or take prune.method magnitude or soft_movement',
        ),
        (
            {'model.quantization': 'int8'},
            "kernels are rounded in training: model.quantization is 'int8'; 'none' leaves them",
        ),
    ],
)
def test_what_is_hardly_ever_meant_is_said(fields: dict, line: str):
    assert notes(2_326, **fields) == [line, 'of the task']


@pytest.mark.parametrize(
    'fields',
    [
        {'train.steps': 55_000, 'prune.method': 'movement', 'prune.keep': 0.15},
        {'train.steps': 1_500, 'prune.method': 'magnitude', 'prune.keep': 0.15},
        {'train.steps': 1_500, 'prune.method': 'movement', 'prune.attention': 'head', 'prune.feed_forward': 'unit'},
    ],
)
def test_pruning_that_is_slow_or_not_by_movement_of_single_weights_needs_no_line(fields: dict):
    assert notes(**fields) == ['of the task']
