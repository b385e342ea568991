"""Tests gates and their gradients against formulas in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.pruning.pruner import (
    HIGH,
    LOW,
    TEMPERATURE,
    hard_concrete,
    open_gate_probability,
    sample_open_uniform,
    straight_through,
)
from tests.tolerances import assert_close


def test_a_mask_hands_its_gradient_to_the_scores():
    scores, factor = jnp.array([0.3, -7.0, 1e6]), jnp.array([2.0, -3.0, 0.5])
    mask = jnp.array([True, False, True])
    value, gradient = jax.value_and_grad(lambda scores: (straight_through(mask, scores) * factor).sum())(scores)
    assert float(value) == 2.5
    np.testing.assert_array_equal(gradient, factor)


def test_hard_concrete_gates_are_the_papers():
    rng = np.random.default_rng(0)
    scores, uniform = rng.normal(size=50), rng.uniform(0.01, 0.99, 50)
    concrete = 1 / (1 + np.exp(-(np.log(uniform / (1 - uniform)) + scores) / TEMPERATURE))
    found = hard_concrete(jnp.float32(scores), jnp.float32(uniform))
    assert_close(found, np.clip(concrete * 1.2 - 0.1, 0, 1).astype(np.float32))
    evaluated = np.clip(1 / (1 + np.exp(-scores)) * 1.2 - 0.1, 0, 1)
    assert_close(hard_concrete(jnp.float32(scores), None), evaluated.astype(np.float32))


def test_the_penalty_is_the_share_of_gates_that_open():
    scores = jnp.full(40_000, 0.4)
    gates = hard_concrete(scores, sample_open_uniform(jax.random.key(0), scores.shape))
    chance = float(open_gate_probability(scores[0]))
    assert abs(float((gates > 0.0).mean()) - chance) < 3 * np.sqrt(chance * (1 - chance) / scores.size)
    assert HIGH > 1.0 > 0.0 > LOW
