"""Tests that three training steps of each task lower the loss of a batch, and that evaluation counts every row.

Losses and metrics are those recorded in tests/recorded_numbers.json (tests/test_recorded_numbers.py says how).
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from configs.finetune.common import fine_tuning_config
from efficient_attention.config.run import RunConfig
from efficient_attention.training.fill_config import fill_config
from efficient_attention.training.run import build_run
from efficient_attention.training.step import jit_train_step
from tests.recorded import assert_recorded
from tests.tasks.letters import letters
from tests.tasks.test_language_modelling import config_of as language_modelling
from tests.training.tiny_run import tiny_config as pretraining

# Optax multiplies Python floats by int32 counts, which the tests otherwise forbid.
pytestmark = [pytest.mark.lenient_promotion, pytest.mark.fast]

ROWS = 12
WORDS = ('ada', 'bee', 'cow', 'doe')
CONTEXT = 'ada saw the sea and bee saw the hill'


def classification(row: int) -> str:
    return json.dumps({'text': f'{WORDS[row % 4]} ran', 'label': 'odd' if row % 2 else 'even'})


def regression(row: int) -> str:
    return json.dumps({'text': f'{WORDS[row % 4]} ran', 'label': row % 4})


def token_classification(row: int) -> str:
    return f'{WORDS[row % 4]}\tB-x\nran\tO\n'


def multiple_choice(row: int) -> str:
    return '\t'.join(['o', f'{WORDS[row % 4]}?', *WORDS, str(row % 4)])


def question_answering(row: int) -> str:
    answer = WORDS[row % 2]
    answers = [{'text': answer, 'answer_start': CONTEXT.index(answer)}]
    return json.dumps({'id': str(row), 'question': f'{row}?', 'context': CONTEXT, 'answers': answers})


def multi_hop(row: int) -> str:
    context = [['sea', ['ada saw it.', ' it is wet.']], ['hill', ['bee saw it.']]]
    labels = {'answer': ('ada', 'yes', 'bee')[row % 3], 'supporting_facts': [['sea', 0], ['hill', 0]]}
    return json.dumps({'_id': str(row), 'question': 'who?', 'context': context, 'type': 'bridge'} | labels)


# problem: (a function for a row of its file, the file's suffix, fields of `examples`, a metric of evaluation)
PROBLEMS: dict[str, tuple[Callable[[int], str], str, dict[str, Any], str]] = {
    'classification': (classification, 'jsonl', {'format': 'table'}, 'accuracy'),
    'regression': (regression, 'jsonl', {'format': 'table'}, 'pearson'),
    'token_classification': (token_classification, 'conll', {'format': 'conll', 'overlong': 'windows'}, 'accuracy'),
    'multiple_choice': (multiple_choice, 'tsv', {'format': 'swag'}, 'accuracy'),
    'question_answering': (question_answering, 'jsonl', {'format': 'squad', 'overlong': 'windows'}, 'f1'),
    'multi_hop': (multi_hop, 'jsonl', {'format': 'hotpotqa'}, 'joint_f1'),
}
MODEL = {'width': 16, 'heads': 2, 'layers': 1, 'max_length': 64, 'init_std': 0.3, 'dropout_rate': 0.0}
MODEL |= {'attention_dropout_rate': 0.0, 'vocab_size': letters().size}


def fine_tuning(folder: Path, problem: str) -> RunConfig:
    """Returns the config of a fine-tuning run on twelve rows, with letters as tokens."""
    make_row, ending, fields, _ = PROBLEMS[problem]
    path = folder / f'rows.{ending}'
    path.write_text('\n'.join(make_row(row) for row in range(ROWS)) + '\n', encoding='utf-8')
    letters().tokenizer.save(str(folder / 'tokenizer.json'))
    config = fine_tuning_config()
    for group, values in (
        ('examples', fields | {'problem': problem, 'buckets': (64,), 'question_length': 8}),
        ('model', MODEL),
    ):
        config[group].update(ConfigDict(values))
    config.examples.train = config.examples.dev = str(path)
    config.data.tokenizer, config.data.length = str(folder / 'tokenizer.json'), 64
    config.train.steps, config.train.batch_size, config.eval.batch_size = 4, 8, 8
    config.head.dropout_rate, config.optimizer.warmup_steps, config.optimizer.learning_rate = 0.0, 0, 2e-3
    return fill_config(config.to_dict()).config


QUICKLY = {'optimizer.warmup_steps': 0, 'optimizer.learning_rate': 3e-3, 'optimizer.bias_correction': True}
QUICKLY |= {'model.dropout_rate': 0.0, 'model.attention_dropout_rate': 0.0}
MEMORY = {'data.batches': 'streams', 'model.memory_length': 32, 'model.relative': 'transformer_xl'}
MEMORY |= {'model.positions': 'none', 'eval.context': 16, 'eval.memory_length': 48}
WINDOW = {'eval.context': 24, 'eval.stride': 8}


def from_text(config_of: Callable[..., RunConfig], **fields: Any) -> Callable[[Path], RunConfig]:
    return lambda folder: config_of(folder, **QUICKLY, **fields)


# task: (a function from a folder to the config, a metric that an evaluation must have)
TASKS: dict[str, tuple[Callable[[Path], RunConfig], str]] = {
    'pretraining': (from_text(pretraining), 'masked_lm_accuracy'),
    'sentence_order': (from_text(pretraining, **{'data.pairs': 'sop'}), 'sop_accuracy'),
    'language_modelling': (from_text(language_modelling), 'bits_per_byte'),
    'language_modelling_window': (from_text(language_modelling, **WINDOW), 'bits_per_byte'),
    'language_modelling_memory': (from_text(language_modelling, **MEMORY), 'bits_per_byte'),
    **{name: (functools.partial(fine_tuning, problem=name), metric) for name, (*_, metric) in PROBLEMS.items()},
}


def three_steps(name: str, folder: Path) -> tuple[dict[str, Any], float]:
    """Takes three steps on one batch.

    Returns their losses with the evaluation metrics after them, and the share of parameters that changed.
    """
    run = build_run(TASKS[name][0](folder), jax.devices()[:1])
    state, step, losses = run.init_random_state(), jit_train_step(run), []
    before = jax.device_get(state.params)
    batch = run.put_batch_on_devices(next(run.task.training_batches(0, 1, 0, 1)))
    for _ in range(3):
        state, metrics = step(state, batch)
        losses.append(float(metrics['loss']))
    assert int(metrics['skipped']) == 0
    moved = [(old != new).any() for old, new in zip(*map(jax.tree.leaves, (before, state.params)), strict=True)]
    return {'losses': losses, 'evaluated': run.evaluation.metrics(run.evaluation.step(), state.params)}, float(
        np.mean(moved)
    )


@pytest.mark.parametrize('name', TASKS)
def test_three_steps_on_one_batch_lower_its_loss_and_move_the_parameters(tmp_path: Path, name: str):
    numbers, moved = three_steps(name, tmp_path)
    losses, evaluated = numbers['losses'], numbers['evaluated']
    assert losses[2] < losses[0] and moved > 0.9
    assert np.isfinite(evaluated[TASKS[name][1]])
    assert name not in PROBLEMS or name == 'token_classification' or evaluated['fine_tuning_weight'] == ROWS
    assert_recorded('tasks', name, numbers)
