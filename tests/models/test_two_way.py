"""A language model of both directions: what each reads, and the losses of both."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from efficient_attention.models.two_way import TwoWayLanguageModel
from efficient_attention.objectives.language_modelling import LanguageModelling
from tests.models.test_directions import CONFIG, SEGMENTS, TOKENS
from tests.tolerances import assert_close


def test_logits_do_not_change_with_what_a_direction_must_not_read():
    model = TwoWayLanguageModel(CONFIG, rngs=nnx.Rngs(0))
    changed = TOKENS[:1].at[0, 3].set(TOKENS[0, 3] % 10 + 1)
    before, after = (jnp.split(model.hidden(tokens, SEGMENTS[:1]), 2, axis=-1) for tokens in (TOKENS[:1], changed))
    moved = [
        np.abs(model.logits(old) - model.logits(new)).max(axis=(0, 2)) > 0
        for old, new in zip(before, after, strict=True)
    ]
    assert moved[0].tolist() == [False] * 3 + [True] * 4 and moved[1].tolist() == [True] * 4 + [False] * 3


def test_losses_of_both_directions():
    model, objective = TwoWayLanguageModel(CONFIG, rngs=nnx.Rngs(0)), LanguageModelling(CONFIG)
    weights = (SEGMENTS > 0).astype(jnp.float32).at[0, 2].set(0.0)
    batch = {'tokens': TOKENS, 'targets': jnp.roll(TOKENS, -1, axis=1), 'segments': SEGMENTS, 'weights': weights}
    sums, carry = objective.sums(model, batch, None, None)
    log_p = [jax.nn.log_softmax(model.logits(half)) for half in jnp.split(model.hidden(TOKENS, SEGMENTS), 2, axis=-1)]
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
    assert {name: float(value) for name, value in objective.weights(batch).items()} == {
        'causal_lm': float(weights.sum()),
        'backward_lm': count,
    }
