"""Tests a language model of both directions: what each direction reads, and both losses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from efficient_attention.models.bidirectional_lm import TwoWayLanguageModel
from efficient_attention.objectives.language_modelling import LanguageModelling
from tests.models.drawn import drawn
from tests.models.test_bidirectional_stacks import CONFIG, SEGMENTS, TOKENS
from tests.tolerances import assert_close


@functools.cache
def model_of() -> TwoWayLanguageModel:
    return nnx.merge(*drawn(lambda: TwoWayLanguageModel(CONFIG, rngs=nnx.Rngs(0)), std=0.4))


@nnx.jit
def logits_of(model: TwoWayLanguageModel, tokens: jax.Array, segments: jax.Array) -> list[jax.Array]:
    """Returns the logits of the forward and of the backward direction."""
    return [model.logits(half) for half in jnp.split(model.hidden(tokens, segments), 2, axis=-1)]


def test_logits_do_not_change_with_what_a_direction_must_not_read():
    changed = TOKENS.copy()
    changed[0, 3] = TOKENS[0, 3] % 10 + 1
    before, after = (jax.device_get(logits_of(model_of(), tokens, SEGMENTS)) for tokens in (TOKENS, changed))
    moved = [np.abs(old - new)[0].max(axis=1) > 0 for old, new in zip(before, after, strict=True)]
    assert moved[0].tolist() == [False] * 3 + [True] * 4 and moved[1].tolist() == [True] * 4 + [False] * 3


def test_losses_of_both_directions():
    objective, weights = LanguageModelling(CONFIG), (SEGMENTS > 0).astype(np.float32)
    weights[0, 2] = 0.0
    batch = {'tokens': TOKENS, 'targets': np.roll(TOKENS, -1, axis=1), 'segments': SEGMENTS, 'weights': weights}
    sums, carry = nnx.jit(lambda model, batch: objective.sums(model, batch, None, None))(model_of(), batch)
    logits = [np.float64(one) for one in logits_of(model_of(), TOKENS, SEGMENTS)]
    log_p = [one - np.log(np.exp(one).sum(axis=-1, keepdims=True)) for one in logits]
    expected, count = {'causal_lm': 0.0, 'backward_lm': 0.0}, 0
    for row in range(3):
        for place in range(7):
            expected['causal_lm'] -= float(weights[row, place] * log_p[0][row, place, batch['targets'][row, place]])
            is_behind = place > 0 and 0 < SEGMENTS[row, place] == SEGMENTS[row, place - 1]
            if is_behind and weights[row, place]:
                expected['backward_lm'] -= float(log_p[1][row, place, TOKENS[row, place - 1]])
                count += 1
    assert carry is None
    assert_close({term: one['loss'] for term, one in sums.items()}, expected)
    assert {name: float(value) for name, value in jax.jit(objective.weights)(batch).items()} == {
        'causal_lm': float(weights.sum()),
        'backward_lm': count,
    }
