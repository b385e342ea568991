"""Tests a loop whose steps are computed a second time for their gradient."""

import jax
import jax.numpy as jnp

from efficient_attention.attention.softmax.dense_loop import map_with_recompute
from tests.tolerances import assert_close


def test_results_and_gradients_are_those_of_a_loop_that_keeps_nothing():
    x_NK = jax.random.normal(jax.random.key(0), (5, 3))

    def loss(x_NK: jax.Array) -> jax.Array:
        return jnp.sum(map_with_recompute(lambda x_K: jnp.exp(jnp.sin(x_K)), x_NK))

    assert_close(loss(x_NK), jnp.sum(jnp.exp(jnp.sin(x_NK))))
    assert_close(jax.grad(loss)(x_NK), jnp.exp(jnp.sin(x_NK)) * jnp.cos(x_NK))
    text = str(jax.make_jaxpr(jax.grad(loss))(x_NK))
    assert 'remat' in text and 'scan' in text
