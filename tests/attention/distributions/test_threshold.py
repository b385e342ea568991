"""Tests sparsemax and entmax against the entmax package, finite differences and the conditions of a distribution."""

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
from efficient_attention.attention.distributions.threshold import solve_threshold
from tests.attention import contract
from tests.tolerances import assert_close

# scripts/make_fixtures/entmax_rows.py writes these rows with the entmax package.
GIVEN = json.loads((Path(__file__).parent / 'entmax_rows.json').read_text(encoding='utf-8'))
ALPHAS = {'sparsemax': 2.0, 'entmax': 1.5}


def weights_of(name: str, z: jax.Array) -> jax.Array:
    """Returns the weights of logits [*, M] where all keys are allowed."""
    rows = z.reshape(1, 1, -1, z.shape[-1])
    return DISTRIBUTIONS[name](rows, jnp.ones((1, 1, 1, 1), bool))[0].reshape(z.shape)


@functools.partial(jax.jit, static_argnums=0)
def run(name: str, z: jax.Array, allowed: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the weights of logits [1, 1, L, M], and the gradients of the sum of weights times cosines."""
    places = jnp.cos(jnp.arange(z.shape[-1], dtype=jnp.float32))[None, None, None]

    def total(z: jax.Array) -> tuple[jax.Array, jax.Array]:
        weights = DISTRIBUTIONS[name](z, allowed)[0]
        return (weights * places).sum(), weights

    gradient, weights = jax.grad(total, has_aux=True)(z)
    return weights, gradient


thresholds = jax.jit(solve_threshold, static_argnums=0)


@pytest.mark.parametrize('name', ALPHAS)
def test_weights_and_gradients_are_those_of_the_entmax_package(name: str):
    supports = set()
    for case in GIVEN['cases']:
        z, expected = np.asarray(case['z'], np.float32), np.asarray(case[name]['weights'])
        weights, gradient = (
            np.asarray(x)[0, 0, 0] for x in run(name, z[None, None, None], np.ones((1, 1, 1, 1), bool))
        )
        assert_close(weights, expected)
        assert_close(gradient, np.asarray(case[name]['gradient']))
        np.testing.assert_array_equal(weights == 0.0, expected == 0.0)
        assert not gradient[expected == 0.0].any()
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
    _, found = run(name, z.astype(np.float32)[None, None, None], np.ones((1, 1, 1, 1), bool))
    np.testing.assert_allclose(found[0, 0, 0], expected, atol=1e-5)


@pytest.mark.parametrize('name', ALPHAS)
@pytest.mark.parametrize('scale', [1e-3, 0.02, 1.0, 100.0])
def test_long_rows_sum_to_one_and_equal_bisection(name: str, scale: float):
    z = scale * np.random.default_rng(1).normal(size=(4, 2000)) + 50.0
    z = np.asarray(z, np.float32)
    found = np.asarray(jax.jit(weights_of, static_argnums=0)(name, z), np.float64)
    expected = contract.entmax(np.asarray(z, np.float64)[None], np.ones((1, 1), bool), ALPHAS[name])[0]
    np.testing.assert_allclose(found.sum(-1), 1.0, atol=2e-5)
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize('name', DISTRIBUTIONS)
def test_keys_that_are_not_allowed_leave_first(name: str):
    """Weights are as if the forbidden keys did not exist, whatever their logits; a row without keys has zero weights
    and gradients.
    """
    z = np.random.default_rng(2).normal(size=(1, 1, 3, 6)).astype(np.float32)
    z[0, 0, 0, 4], z[0, 0, 1, 1] = 60.0, 1e9
    allowed = np.asarray([[1, 0, 1, 1, 0, 1], [1, 0, 0, 1, 1, 1], [0] * 6], bool)[None, None]
    weights, gradient = jax.device_get(run(name, z, allowed))
    for row in range(2):
        kept = np.flatnonzero(allowed[0, 0, row])
        alone, _ = jax.device_get(run(name, z[:, :, row : row + 1, kept], np.ones((1, 1, 1, 1), bool)))
        assert_close(weights[0, 0, row, kept], alone[0, 0, 0])
    assert not weights[~allowed].any()
    assert not gradient[~allowed].any() and not gradient[0, 0, 2].any()
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize('power', [1, 2])
def test_the_threshold_of_equal_entries(power: int):
    """The threshold of equal entries is found in one step; neither far lower entries nor -inf entries change it."""
    z = jnp.asarray([[0.0, 0.0, 0.0, 0.0, -3.0, -jnp.inf, -1.0]])
    assert_close(thresholds(power, z), np.full((1, 1), -(0.25 ** (1 / power))))


@pytest.mark.parametrize('power', [1, 2])
def test_a_row_is_the_same_beside_rows_that_take_longer(power: int):
    """A row's threshold is equal to the bit next to rows that need more steps; some rows drop few entries a step."""
    rows = [
        np.zeros(300),
        -(np.linspace(0.0, 1.0, 300) ** 4),
        -np.linspace(0.0, 1.0, 300),
        np.log(np.linspace(1, 0.3, 300)),
    ]
    rows.append(np.maximum(-(1.5 ** -np.arange(300.0)[::-1]), -1.0))
    z = jnp.asarray(np.stack([row - row.max() for row in rows]), jnp.float32)
    together = np.asarray(thresholds(power, z))
    for number in range(len(rows)):
        np.testing.assert_array_equal(together[number], thresholds(power, np.asarray(z)[number : number + 1])[0])
    weights = np.maximum(np.asarray(z, np.float64) - np.asarray(together, np.float64), 0.0) ** power
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-5)


@pytest.mark.parametrize('name', ALPHAS)
def test_devices_do_not_wait_for_each_other_s_rows(name: str):
    z = jnp.asarray(np.random.default_rng(5).normal(size=(4, 2, 3, 7)), jnp.float32)
    mesh = jax.make_mesh((4, 2), ('data', 'tensor'))
    allowed = jnp.ones((1, 1, 1, 1), bool)

    @using_mesh(mesh)
    def weights(z: jax.Array) -> jax.Array:
        return DISTRIBUTIONS[name](z, allowed)[0]

    split = jax.device_put(z, NamedSharding(mesh, PartitionSpec('data', 'tensor')))
    compiled = jax.jit(weights).lower(split).compile()
    assert 'while' in compiled.as_text() and 'all-reduce' not in compiled.as_text()
    np.testing.assert_array_equal(compiled(split), run(name, z, allowed)[0])


@pytest.mark.parametrize('name', ALPHAS)
def test_a_logit_that_is_no_number_is_not_hidden(name: str):
    weights, _ = run(name, np.float32([[[[0.0, np.nan, 1.0]]]]), np.ones((1, 1, 1, 1), bool))
    assert np.isnan(weights).any()
