"""Tests the causal language-modelling objective: next-token loss against a separate formula, weights, and padding."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.decoder import Decoder
from efficient_attention.objectives.language_modelling import LanguageModelling
from efficient_attention.objectives.objective import total_loss
from tests.models.drawn import drawn
from tests.tolerances import assert_close

CONFIG = ModelConfig(
    width=16, heads=2, vocab_size=20, layers=1, max_length=12, token_types=0, attention='causal', init_std=0.3
)
OBJECTIVE = LanguageModelling()


def random_batch(rows: int = 4, length: int = 12) -> dict[str, np.ndarray]:
    """Returns rows of 6 to 12 tokens with padding, whose targets have weight 0."""
    rng = np.random.default_rng(0)
    is_real = np.arange(length) < rng.integers(6, length + 1, rows)[:, None]
    integers = {'tokens': rng.integers(0, 20, (rows, length)), 'targets': rng.integers(0, 20, (rows, length))}
    batch = {name: array.astype(np.int32) for name, array in (integers | {'segments': is_real}).items()}
    return batch | {'weights': is_real.astype(np.float32)}


BATCH = random_batch()


@pytest.fixture(scope='module')
def model() -> Decoder:
    return nnx.merge(*drawn(lambda: Decoder(CONFIG, rngs=nnx.Rngs(0))))


def sums_of(model: Decoder, batch: dict, rng: jax.Array | None = None) -> dict:
    return jax.device_get(run(model, batch, None, rng)[0]['causal_lm'])


run = nnx.jit(OBJECTIVE.sums)


def test_sums_equal_the_logits_own(model):
    logits = np.asarray(nnx.jit(lambda m, *arrays: m(*arrays))(model, BATCH['tokens'], BATCH['segments']), np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    targets, weights = BATCH['targets'], BATCH['weights']
    chosen = np.take_along_axis(log_p, targets[..., None], -1)[..., 0]
    sums = sums_of(model, BATCH)
    np.testing.assert_allclose(sums['loss'], -(chosen * weights).sum(), rtol=1e-5)
    np.testing.assert_allclose(sums['accuracy'], ((logits.argmax(-1) == targets) * weights).sum())


def test_weights_count_predicted_tokens():
    assert jax.jit(OBJECTIVE.weights)(BATCH) == {'causal_lm': float(BATCH['weights'].sum())}


def test_what_stands_in_the_padding_counts_for_nothing(model):
    is_padding = BATCH['weights'] == 0
    assert is_padding.any()
    other = BATCH | {name: np.where(is_padding, np.int32(7), BATCH[name]) for name in ('tokens', 'targets')}
    assert_close(sums_of(model, other), sums_of(model, BATCH))


def test_sums_of_parts_add_up_and_empty_rows_add_nothing(model):
    whole = sums_of(model, BATCH)
    first = {name: np.concatenate([rows[:2], np.zeros_like(rows[2:])]) for name, rows in BATCH.items()}
    second = {name: np.concatenate([np.zeros_like(rows[:2]), rows[2:]]) for name, rows in BATCH.items()}
    assert_close(jax.tree.map(np.add, sums_of(model, first), sums_of(model, second)), whole)


def test_the_unigram_loss_is_summed_where_the_batch_has_it(model):
    losses = np.arange(48, dtype=np.float32).reshape(4, 12)
    sums = sums_of(model, BATCH | {'unigram_losses': losses})
    np.testing.assert_allclose(sums['unigram_loss'], (losses * BATCH['weights']).sum())
    assert set(sums_of(model, BATCH)) == {'loss', 'accuracy'}


def test_dropout_follows_the_keys_of_the_rows(model):
    keys, order = jax.random.split(jax.random.key(0), 4), np.asarray([2, 0, 3, 1])
    dropped = sums_of(model, BATCH, keys)
    assert_close(sums_of(model, {name: rows[order] for name, rows in BATCH.items()}, keys[order]), dropped)
    assert abs(dropped['loss'] - sums_of(model, BATCH)['loss']) > 1e-3


def test_what_layers_tell_is_a_term_of_its_own_with_the_factor_of_the_config():
    fields = {'memory_length': 12, 'positions': 'none', 'rotary': True, 'compression': 'convolution'}
    fields |= {'compressed_length': 6, 'reconstruction_weight': 0.25}
    config = dataclasses.replace(CONFIG, **fields)
    objective, model = LanguageModelling(config), nnx.merge(*drawn(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    sums_of_all = nnx.jit(objective.sums)
    assert (objective.loss_factor('reconstruction'), objective.loss_factor('causal_lm')) == (0.25, 1.0)
    carry, sums = objective.initial_carry(4), {}
    for _ in range(2):
        sums, carry = sums_of_all(model, BATCH, carry, None)
    weights = jax.device_get(jax.jit(objective.weights)(BATCH))
    assert set(sums) == set(weights) == {'causal_lm', 'reconstruction'}
    assert int(weights['reconstruction']) == int(BATCH['segments'].sum()) and sums['reconstruction']['loss'] > 0.0
    total = sums['causal_lm']['loss'] / weights['causal_lm']
    total += 0.25 * sums['reconstruction']['loss'] / weights['reconstruction']
    assert_close(total_loss(sums, weights, objective.loss_factor), total)
