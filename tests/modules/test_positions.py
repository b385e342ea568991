"""Sinusoidal and rotary positions: their formulas and the properties they exist for."""

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.modules.positions import rotate, sinusoid
from tests.tolerances import assert_close


def test_sinusoid_formula():
    table = np.asarray(sinusoid(jnp.arange(50), 16))
    for position in (0, 1, 49):
        frequencies = 10_000.0 ** (-np.arange(8) / 8)
        np.testing.assert_allclose(
            table[position], [*np.sin(position * frequencies), *np.cos(position * frequencies)], atol=1e-5
        )


def test_rotated_products_depend_on_the_distance_alone():
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))

    def at(x: jax.Array, position: int) -> jax.Array:
        return rotate(x, jnp.full((1, 1), position))

    products = [(at(q, position + 3) * at(k, position)).sum() for position in (0, 5, 100)]
    assert_close(products[1:], [products[0]] * 2)
    assert abs((at(q, 4) * at(k, 0)).sum() - products[0]) > 1e-3


def test_rotation_keeps_lengths_and_is_nothing_at_position_0():
    x = jax.random.normal(jax.random.key(1), (2, 5, 3, 8))
    positions = jnp.tile(jnp.arange(5)[None], (2, 1))
    assert_close(jnp.linalg.norm(rotate(x, positions), axis=-1), jnp.linalg.norm(x, axis=-1))
    assert_close(rotate(x, positions)[:, 0], x[:, 0])
    assert rotate(x.astype(jnp.bfloat16), positions).dtype == jnp.bfloat16
