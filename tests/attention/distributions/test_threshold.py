"""Sparsemax and entmax against the entmax package, finite differences, and the simplex's own conditions."""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from efficient_attention.attention.device_mesh import using_mesh
from efficient_attention.attention.distributions import DISTRIBUTIONS
from efficient_attention.attention.distributions.threshold import threshold
from tests.attention import contract
from tests.tolerances import assert_close

# What scripts/make_fixtures/entmax_rows.py writes.
GIVEN = json.loads((Path(__file__).parent / 'entmax_rows.json').read_text(encoding='utf-8'))
ALPHAS = {'sparsemax': 2.0, 'entmax': 1.5}


def weights_of(name: str, z: jax.Array) -> jax.Array:
    """The weights of rows [*, M], all of whose entries are allowed."""
    rows = z.reshape(1, 1, -1, z.shape[-1])
    return DISTRIBUTIONS[name](rows, jnp.ones((1, 1, 1, 1), bool))[0].reshape(z.shape)


@pytest.mark.parametrize('name', ALPHAS)
def test_weights_and_gradients_are_those_of_the_entmax_package(name: str):
    supports = set()
    for case in GIVEN['cases']:
        z, expected = jnp.asarray(case['z'], jnp.float32), np.asarray(case[name]['weights'])
        weights, pull = jax.vjp(functools.partial(weights_of, name), z)
        assert_close(weights, expected)
        (gradient,) = pull(jnp.cos(jnp.arange(len(z), dtype=jnp.float32)))
        assert_close(gradient, np.asarray(case[name]['gradient']))
        np.testing.assert_array_equal(np.asarray(weights) == 0.0, expected == 0.0)
        assert not np.asarray(gradient)[expected == 0.0].any()
        supports.add((expected > 0.0).mean())
    assert 1.0 in supports and min(supports) < 0.1


@pytest.mark.parametrize('name', ALPHAS)
def test_gradients_are_finite_differences_in_float64(name: str):
    z = np.random.default_rng(3).normal(size=9)
    seed = np.cos(np.arange(9.0))

    def value(z: np.ndarray) -> float:
        return float(contract.entmax(z[None, None], np.ones((1, 9), bool), ALPHAS[name])[0, 0] @ seed)

    steps = 1e-5 * np.eye(9)
    expected = [(value(z + step) - value(z - step)) / 2e-5 for step in steps]
    found = jax.grad(lambda z: weights_of(name, z) @ jnp.asarray(seed, jnp.float32))(jnp.asarray(z, jnp.float32))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize('name', ALPHAS)
@pytest.mark.parametrize('scale', [1e-3, 0.02, 1.0, 100.0])
def test_long_rows_sum_to_one_and_equal_bisection(name: str, scale: float):
    z = scale * np.random.default_rng(1).normal(size=(4, 2000)) + 50.0
    z = np.asarray(z, np.float32)
    found = np.asarray(weights_of(name, jnp.asarray(z)), np.float64)
    expected = contract.entmax(np.asarray(z, np.float64)[None], np.ones((1, 1), bool), ALPHAS[name])[0]
    np.testing.assert_allclose(found.sum(-1), 1.0, atol=2e-5)
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize('name', DISTRIBUTIONS)
def test_keys_that_are_not_allowed_leave_first(name: str):
    """As if they were not there, whatever their logits; a row without keys gives zeros and sends back zeros."""
    z = jnp.asarray(np.random.default_rng(2).normal(size=(1, 1, 3, 6)), jnp.float32)
    z = z.at[0, 0, 0, 4].set(60.0).at[0, 0, 1, 1].set(1e9)
    allowed = jnp.asarray([[1, 0, 1, 1, 0, 1], [1, 0, 0, 1, 1, 1], [0] * 6], bool)[None, None]

    def run(z: jax.Array) -> tuple[jax.Array, jax.Array]:
        weights = DISTRIBUTIONS[name](z, allowed)[0]
        return (weights * jnp.cos(jnp.arange(18.0).reshape(1, 1, 3, 6))).sum(), weights

    gradient, weights = jax.grad(run, has_aux=True)(z)
    for row in range(2):
        kept = np.flatnonzero(allowed[0, 0, row])
        alone = DISTRIBUTIONS[name](z[:, :, row : row + 1, kept], jnp.ones((1, 1, 1, 1), bool))[0]
        assert_close(weights[0, 0, row, kept], alone[0, 0, 0])
    assert not np.asarray(weights)[~np.asarray(allowed)].any()
    assert not np.asarray(gradient)[~np.asarray(allowed)].any() and not np.asarray(gradient)[0, 0, 2].any()
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize('power', [1, 2])
def test_the_threshold_of_equal_entries(power: int):
    """Found in one step; entries far below, and those that are not there at all, do not move it."""
    z = jnp.asarray([[0.0, 0.0, 0.0, 0.0, -3.0, -jnp.inf, -1.0]])
    assert_close(threshold(power, z), np.full((1, 1), -(0.25 ** (1 / power))))


@pytest.mark.parametrize('power', [1, 2])
def test_a_row_is_the_same_beside_rows_that_take_longer(power: int):
    """To the bit, and rows made so that a step drops few entries are searched to their end."""
    rows = [
        np.zeros(300),
        -(np.linspace(0.0, 1.0, 300) ** 4),
        -np.linspace(0.0, 1.0, 300),
        np.log(np.linspace(1, 0.3, 300)),
    ]
    rows.append(np.maximum(-(1.5 ** -np.arange(300.0)[::-1]), -1.0))
    z = jnp.asarray(np.stack([row - row.max() for row in rows]), jnp.float32)
    together = threshold(power, z)
    for number in range(len(rows)):
        np.testing.assert_array_equal(together[number], threshold(power, z[number : number + 1])[0])
    weights = np.maximum(np.asarray(z, np.float64) - np.asarray(together, np.float64), 0.0) ** power
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-5)


@pytest.mark.parametrize('name', ALPHAS)
def test_devices_do_not_wait_for_each_other_s_rows(name: str):
    z = jnp.asarray(np.random.default_rng(5).normal(size=(4, 2, 3, 7)), jnp.float32)
    mesh = jax.make_mesh((4, 2), ('data', 'tensor'))
    allowed = jnp.ones((1, 1, 1, 1), bool)

    @using_mesh(mesh)
    def run(z: jax.Array) -> jax.Array:
        return DISTRIBUTIONS[name](z, allowed)[0]

    split = jax.device_put(z, NamedSharding(mesh, PartitionSpec('data', 'tensor')))
    compiled = jax.jit(run).lower(split).compile()
    assert 'while' in compiled.as_text() and 'all-reduce' not in compiled.as_text()
    np.testing.assert_array_equal(compiled(split), DISTRIBUTIONS[name](z, allowed)[0])


@pytest.mark.parametrize('name', ALPHAS)
def test_a_logit_that_is_no_number_is_not_hidden(name: str):
    assert np.isnan(weights_of(name, jnp.asarray([[0.0, jnp.nan, 1.0]]))).any()
