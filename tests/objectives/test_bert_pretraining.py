"""Tests the pretraining objective: which examples count, with which weights, and batches without pairs."""

import jax
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.pretraining import PretrainingModel, encoder_options
from efficient_attention.objectives.bert_pretraining import Pretraining
from tests.models.drawn import drawn
from tests.tolerances import assert_close
from tests.training.tiny_batch import random_batch

CONFIG = ModelConfig(width=16, heads=2, vocab_size=20, layers=1, max_length=12, init_std=0.3)
BATCH = jax.device_get(random_batch(rows=4, length=12, vocabulary=20, predictions=3))


@pytest.fixture(scope='module')
def model() -> PretrainingModel:
    return nnx.merge(*drawn(lambda: PretrainingModel(CONFIG, has_pairs=True, rngs=nnx.Rngs(0))))


def sums_of(model: PretrainingModel, batch: dict, *, has_pairs: bool = True, rng: jax.Array | None = None) -> dict:
    return jax.device_get(RUN[has_pairs](model, batch, None, rng)[0])


RUN = {has_pairs: nnx.jit(Pretraining(has_pairs).sums) for has_pairs in (False, True)}


def test_sums_equal_the_logits_own(model):
    sums = sums_of(model, BATCH)

    @nnx.jit
    def both(model: PretrainingModel, batch: dict) -> tuple[jax.Array, jax.Array]:
        x_BLD = model.encoder(batch['tokens'], batch['segments'], **encoder_options(batch, None, 0))
        return model.masked_logits(x_BLD, batch['masked_positions']), model.pair_logits(x_BLD)

    logits, pairs = (np.asarray(one, np.float64) for one in both(model, BATCH))
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(log_p, BATCH['masked_tokens'][..., None], -1)[..., 0]
    np.testing.assert_allclose(sums['masked_lm']['loss'], -(chosen * BATCH['masked_weights']).sum(), rtol=1e-5)
    correct = (pairs.argmax(-1) == BATCH['pair_labels']) * BATCH['pair_weights']
    np.testing.assert_allclose(sums['pair']['accuracy'], correct.sum())


def test_weights_count_masked_tokens_and_pairs():
    batch = BATCH | {'masked_weights': np.ones((4, 3), np.float32), 'pair_weights': np.float32([1, 1, 0, 0])}
    batch['masked_weights'][0, 1:] = 0.0
    weights = jax.jit(Pretraining(has_pairs=True).weights)(batch)
    assert weights == {'masked_lm': 10.0, 'pair': 2.0}


def test_sums_of_parts_add_up(model):
    whole = sums_of(model, BATCH)
    halves = [sums_of(model, {name: rows[part] for name, rows in BATCH.items()}) for part in (slice(2), slice(2, 4))]
    assert_close(jax.tree.map(np.add, *halves), whole)


def test_rows_without_weight_count_for_nothing(model):
    padded = {name: np.concatenate([rows, np.zeros_like(rows)]) for name, rows in BATCH.items()}
    assert_close(sums_of(model, padded), sums_of(model, BATCH))


def test_without_pairs_their_arrays_are_not_needed(model):
    batch = {name: rows for name, rows in BATCH.items() if not name.startswith('pair')}
    assert set(jax.jit(Pretraining(has_pairs=False).weights)(batch)) == {'masked_lm'}
    sums = sums_of(model, batch, has_pairs=False)
    assert_close(sums, {'masked_lm': sums_of(model, BATCH)['masked_lm']})


def test_the_unigram_loss_is_summed_where_the_batch_has_it(model):
    losses = np.arange(12, dtype=np.float32).reshape(4, 3)
    sums = sums_of(model, BATCH | {'unigram_losses': losses})
    np.testing.assert_allclose(sums['masked_lm']['unigram_loss'], (losses * BATCH['masked_weights']).sum())
    assert set(sums_of(model, BATCH)['masked_lm']) == {'loss', 'accuracy'}


def test_dropout_follows_the_keys_of_the_rows(model):
    keys = jax.random.split(jax.random.key(0), 4)
    dropped = sums_of(model, BATCH, rng=keys)
    order = np.asarray([2, 0, 3, 1])
    shuffled = {name: rows[order] for name, rows in BATCH.items()}
    assert_close(sums_of(model, shuffled, rng=keys[order]), dropped)
    assert abs(dropped['masked_lm']['loss'] - sums_of(model, BATCH)['masked_lm']['loss']) > 1e-3
