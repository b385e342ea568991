"""Tests the pretraining model: its two sets of logits, and that it has only the requested heads."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.pretraining import PretrainingModel, encoder_options
from tests.models.drawn import drawn
from tests.tolerances import assert_close

CONFIG = ModelConfig(width=16, heads=2, vocab_size=11, layers=2, max_length=8, init_std=0.3)
TOKENS = np.arange(24, dtype=np.int32).reshape(3, 8) % 11
BATCH = {
    'tokens': TOKENS,
    'segments': np.ones((3, 8), np.int32),
    'token_types': TOKENS % 2,
    'positions': np.tile(np.arange(8, dtype=np.int32)[None], (3, 1)),
}


@functools.cache
def make(has_pairs: bool) -> PretrainingModel:
    return nnx.merge(*drawn(lambda: PretrainingModel(CONFIG, has_pairs=has_pairs, rngs=nnx.Rngs(0))))


@jax.jit
def encode(batch: dict[str, jax.Array], key: jax.Array | None = None) -> jax.Array:
    return make(has_pairs=True).encoder(batch['tokens'], batch['segments'], **encoder_options(batch, key, 0))


@functools.cache
def encoded() -> np.ndarray:
    return np.asarray(encode(BATCH))


def test_masked_logits_are_those_of_all_positions_where_they_are_asked_for():
    model, x_BLD = make(has_pairs=True), encoded()
    positions = np.int32([[0, 7, 7], [3, 2, 1], [5, 0, 0]])

    @nnx.jit
    def both(model: PretrainingModel, x_BLD: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        return model.masked_lm(x_BLD, model.encoder.embeddings.token), model.masked_logits(x_BLD, positions)

    everywhere, found = map(np.asarray, both(model, x_BLD, positions))
    assert_close(found, np.stack([row[at] for row, at in zip(everywhere, positions, strict=True)]))


def test_token_types_and_positions_of_the_batch_are_read():
    for name in ('token_types', 'positions'):
        other = BATCH | {name: 1 - BATCH[name] % 2}
        assert np.abs(encoded() - np.asarray(encode(other))).max() > 1e-2, name


def test_pair_logits_come_from_the_first_position():
    model, x_BLD = make(has_pairs=True), encoded()
    logits = nnx.jit(PretrainingModel.pair_logits)
    assert logits(model, x_BLD).shape == (3, 2)
    first_alone = np.where(np.arange(8)[None, :, None] == 0, x_BLD, np.float32(0.0))
    np.testing.assert_array_equal(logits(model, x_BLD), logits(model, first_alone))


def test_without_pairs_there_is_no_pooler():
    names = set(nnx.to_pure_dict(nnx.state(make(has_pairs=False))))
    assert names == {'encoder', 'masked_lm'}
    with pytest.raises(ValueError, match='without a sentence-pair head'):
        make(has_pairs=False).pair_logits(jnp.zeros((1, 8, 16)))


def test_dropout_follows_the_key():
    first, again, other = (np.asarray(encode(BATCH, jax.random.key(seed))) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-2
