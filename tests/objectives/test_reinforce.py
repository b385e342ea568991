"""Tests the REINFORCE gradient: its mean is the gradient of the expected loss, enumerated over all choices."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.flatten_util import ravel_pytree

from efficient_attention.attention.hard import definition as hard
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.encoder_decoder import EncoderDecoder
from efficient_attention.objectives.reinforce import leave_one_out_mean, losses_to_go, surrogate
from efficient_attention.objectives.text_to_text import TextToText
from tests.models.drawn import drawn
from tests.tolerances import assert_close

SEGMENTS = np.int32([[1, 1, 1, 2, 2], [1, 1, 1, 1, 0]])
LOSSES = np.float32([[1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 4.0, 6.0, 8.0, 0.0]])


def test_a_draw_is_followed_by_the_losses_of_its_text():
    assert_close(jax.jit(losses_to_go)(LOSSES, SEGMENTS), np.asarray([[6, 5, 3, 9, 5], [20, 18, 14, 8, 0]], np.float32))


def test_the_baseline_is_the_mean_of_the_other_rows():
    mean = jax.jit(leave_one_out_mean)
    found = mean(np.float32([[1.0, 9.0], [2.0, 4.0], [6.0, 7.0]]), np.asarray([[1, 1], [1, 1], [1, 0]], bool))
    assert_close(found, np.asarray([[4.0, 4.0], [3.5, 9.0], [1.5, 6.5]], np.float32))
    assert not np.asarray(mean(np.ones((1, 3), np.float32), np.ones((1, 3), bool))).any()


def test_the_surrogate_is_zero_and_weighs_log_probabilities():
    logs = np.full(SEGMENTS.shape, -2.0, np.float32)
    run = jax.jit(jax.value_and_grad(surrogate, argnums=(0, 1)))
    value, (gradient, of_losses) = jax.device_get(run(logs, LOSSES, SEGMENTS))
    assert value == 0.0
    expected = np.asarray([[-14, -13, -11, 1, 5], [14, 13, 11, -1, 0]], np.float32)
    assert_close(gradient, expected)
    assert not of_losses.any()


# ---- a model of two layers, each of whose two queries draws one of two keys ----

LAYERS, CHOICES, PLACES = 2, 2, 2
CONFIG = ModelConfig(
    width=4, heads=1, layers=1, decoder_layers=LAYERS, feed_forward_width=4, vocab_size=5, max_length=4, token_types=0,
    norm='pre', dropout_rate=0.0, attention_dropout_rate=0.0, cross_attention='hard(full, sampled=True)',
)  # fmt: skip
# Rows are equal, so that the other row's loss is a good baseline.
BATCH = jax.device_put(
    {
        'source': np.int32([[1, 4]] * 2),
        'source_segments': np.ones((2, CHOICES), np.int32),
        'tokens': np.int32([[0, 3]] * 2),
        'segments': np.ones((2, PLACES), np.int32),
        'targets': np.int32([[3, 1]] * 2),
        'weights': np.ones((2, PLACES), np.float32),
    }
)


def loss_of(graph: nnx.GraphDef, params: dict, keys: jax.Array) -> jax.Array:
    return TextToText().sums(nnx.merge(graph, params), BATCH, None, keys)[0]['target']['loss']


def exact_gradient(graph: nnx.GraphDef, params: dict, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Returns the gradient of the expected loss: the sum over all choices of probability times loss.

    Both rows make the same choices. Random bits force each choice; the layers take theirs one after another.
    """
    choices = np.int32([*itertools.product(range(CHOICES), repeat=LAYERS * PLACES)]).reshape(-1, LAYERS, PLACES)

    def expected(params: dict) -> jax.Array:
        return jax.vmap(functools.partial(of_choice, params))(jnp.asarray(choices)).sum()

    def of_choice(params: dict, choice_NL: jax.Array) -> jax.Array:
        model, layers = nnx.merge(graph, params), iter(choice_NL)
        model.decoder.stack.unstack_layers()

        def forced(*_: Any) -> jax.Array:
            is_chosen = jnp.arange(CHOICES)[None] == next(layers)[:, None]
            bits = jnp.where(is_chosen, jnp.uint32(2**32 - 1), jnp.uint32(0))
            return jnp.broadcast_to(bits, (2, 1, PLACES, CHOICES))

        monkeypatch.setattr(hard, 'random_bits_per_pair', forced)
        names = ('source', 'source_segments', 'tokens', 'segments')
        hidden, logs = model.hidden_and_draws(*(BATCH[name] for name in names), rng=jax.random.key(0))
        losses = TextToText().losses(model.logits(hidden), BATCH['targets'])[0]
        return (jnp.exp(logs.sum(axis=1)) * losses.sum(axis=1)).sum()

    found = jax.jit(lambda params: ravel_pytree(jax.grad(expected)(params))[0])(params)
    monkeypatch.undo()
    return np.asarray(found)


def test_the_mean_gradient_is_that_of_all_choices(monkeypatch: pytest.MonkeyPatch):
    """The mean is within 3 sigma along random directions; some directions change only queries and keys."""
    graph, params = drawn(lambda: EncoderDecoder(CONFIG, rngs=nnx.Rngs(0)), std=0.8)
    exact = exact_gradient(graph, params, monkeypatch)
    compares = np.concatenate([one.ravel() for one in jax.tree.leaves(jax.tree.map_with_path(is_compared, params))])
    directions = np.random.default_rng(3).normal(size=(8, exact.size)).astype(np.float32)
    directions[:4] *= compares

    def sample(keys: jax.Array) -> jax.Array:
        return directions @ ravel_pytree(jax.grad(functools.partial(loss_of, graph))(params, keys))[0]

    keys = jax.random.split(jax.random.key(1), (32, 128, 2))
    found = np.asarray(jax.jit(lambda keys: jax.lax.map(jax.vmap(sample), keys))(keys)).reshape(-1, 8)
    sigma = found.std(axis=0) / np.sqrt(len(found))
    assert (np.abs(found.mean(axis=0) - directions @ exact) < 3.0 * sigma).all()
    # The expected gradient is clearly different from zero.
    assert (np.abs(directions @ exact)[:4] > 6.0 * sigma[:4]).any()


def is_compared(path: Any, leaf: jax.Array) -> np.ndarray:
    """Returns ones for the parameters that decide only a query's draws, and zeros for all others."""
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    return np.full(leaf.shape, float('cross_attention/query' in name or 'cross_attention/key' in name))


def test_outside_training_nothing_is_drawn():
    graph, params = drawn(lambda: EncoderDecoder(CONFIG, rngs=nnx.Rngs(0)))
    arrays = [BATCH[name] for name in ('source', 'source_segments', 'tokens', 'segments')]
    hidden, draws = jax.jit(lambda params: nnx.merge(graph, params).hidden_and_draws(*arrays))(params)
    assert draws is None and np.isfinite(hidden).all()
