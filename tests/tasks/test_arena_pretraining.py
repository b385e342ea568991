"""Tests of masked pretraining on the rows of a long-range task, and of a classifier that starts from it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.arena import get_config
from efficient_attention.config.dict_conversion import from_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.data.arena.listops import listops_row
from efficient_attention.data.tokenizers.fixed_vocabulary import FIRST_WORD
from efficient_attention.errors import InputError
from efficient_attention.tasks.arena_pretraining import ArenaPretrainingTask, parse_train_and_dev_datasets
from efficient_attention.tasks.registry import make_task
from efficient_attention.training.fill_config import fill_config
from efficient_attention.training.loop import train
from efficient_attention.workdir.metrics import read_metrics
from tests.training.shared_programs import shared_programs  # noqa: F401  a fixture

pytestmark = pytest.mark.usefixtures('shared_programs')
SMALL = {'model.width': 8, 'model.layers': 1, 'model.feed_forward_width': 8, 'data.length': 30, 'model.max_length': 30}
SMALL |= {'train.steps': 3, 'train.batch_size': 8, 'optimizer.warmup_steps': 0, 'eval.batch_size': 8}
SMALL |= {'model.dropout_rate': 0.0, 'model.attention_dropout_rate': 0.0}
# Optax's bias correction mixes Python floats with int32 counts, which the tests forbid.
SMALL |= {'optimizer.bias_correction': False}
TRAIN, DEV = 'listops:rows=20:length=8-30', 'listops:rows=5:length=8-30'


def masked_config(folder: Path, mechanism: str = 'nystrom', **fields: Any) -> RunConfig:
    config = get_config(f'listops_short,{mechanism},small,masked')
    config.update_from_flattened_dict(SMALL | {'data.source': f'arena:{TRAIN};{DEV}', 'data.max_masked': 3})
    config.update_from_flattened_dict({'data.cache': str(folder / 'cache')} | fields)
    return from_dict(config.to_dict(), RunConfig)


def test_batches_hold_the_tasks_rows_each_by_itself(tmp_path: Path):
    task = make_task(masked_config(tmp_path))
    assert isinstance(task, ArenaPretrainingTask) and task.rows.count == 20 and task.held_out_rows.count == 5
    assert task.rows.token_ids(2).tolist() == (listops_row(0, 'train', 2, 8, 30).texts[0] + FIRST_WORD).tolist()
    batch = next(iter(task.training_batches(0, 1, 0, 1)))
    assert {name: array.shape for name, array in batch.items()} == {
        name: shape.shape for name, shape in task.batch_shapes().items()
    }
    assert batch['segments'].max() == 1 and not batch['token_types'].any()
    held_out = list(task.evaluation_batches(0, 1))
    assert sum(int((one['masked_weights'].sum(axis=1) > 0).sum()) for one in held_out) == 5
    assert all(np.isfinite(one['unigram_losses']).all() for one in held_out)


def test_a_classifier_begins_with_what_it_has_learnt(tmp_path: Path):
    """A classifier starts from a masked model. A row is one text, so Nystrom's attention is allowed."""
    train(masked_config(tmp_path), tmp_path / 'masked')
    assert make_task(masked_config(tmp_path)).notes == []
    [note] = make_task(masked_config(tmp_path, **{'data.length': 12})).notes
    assert note.endswith('of 20 rows have more than data.length 12 words and were cut')
    assert read_metrics(tmp_path / 'masked')[-1]['masked_lm_weight'] > 5
    config = get_config('listops_short,nystrom')
    sets = {f'examples.{split}': text for split, text in (('train', TRAIN), ('dev', DEV), ('test', DEV))}
    fields = {'examples.cache': str(tmp_path / 'cache'), 'examples.buckets': (30,)}
    config.update_from_flattened_dict(SMALL | sets | fields | {'train.start_from': str(tmp_path / 'masked')})
    filled = fill_config(config.to_dict())
    train(filled.config, tmp_path / 'run', examples=filled.examples, pretrained=filled.pretrained)
    assert read_metrics(tmp_path / 'run')[-1]['fine_tuning_weight'] == 5


def test_what_does_not_serve_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"^data\.pairs is 'sop'; it must be 'none' with rows of arena:<set>$"):
        masked_config(tmp_path, **{'data.pairs': 'sop'})
    with pytest.raises(InputError, match=r'^data\.tokenizer has another vocabulary than the rows of listops'):
        make_task(masked_config(tmp_path, **{'data.tokenizer': 'fixed:bytes', 'model.vocab_size': 261}))
    with pytest.raises(InputError, match=r'^the tokenizer has 20 tokens, more than model\.vocab_size 19$'):
        make_task(masked_config(tmp_path, **{'data.vocab_size': 19, 'model.vocab_size': 19}))
    with pytest.raises(InputError, match=r"^data\.source is 'chess'; known kinds of rows"):
        parse_train_and_dev_datasets('arena:chess')
    assert parse_train_and_dev_datasets(f'arena:{TRAIN}')[1].count == 20  # A single text is used for training and dev.
