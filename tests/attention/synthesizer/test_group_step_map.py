"""Tests a loop over groups and their steps: its results and gradients, and that no step is computed in vain."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from efficient_attention.attention.synthesizer.group_step_map import map_group_steps
from tests.tolerances import assert_close

GROUPS, STEPS, S, M = 3, 4, 5, 6


def compute(fixed: dict[str, Array], group: dict[str, Array], step: dict[str, Array], number: Array) -> Array:
    mask_SM = fixed['number_nS'][number][:, None] != fixed['number_1M']
    return jnp.where(mask_SM, jnp.sin(step['x'] * group['y'][None]) + group['z'][None], 0.0)


def arrays() -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
    rng = np.random.default_rng(0)
    fixed = {
        'number_nS': rng.integers(0, 3, (STEPS, S)).astype(np.int32),
        'number_1M': rng.integers(0, 3, (1, M)).astype(np.int32),
    }
    groups = {name: rng.normal(size=(GROUPS, M)).astype(np.float32) for name in 'yz'}
    return fixed, groups, {'x': rng.normal(size=(GROUPS, STEPS, S, M)).astype(np.float32)}


def at_once(fixed: dict[str, Array], groups: dict[str, Array], steps: dict[str, Array]) -> Array:
    return jnp.stack(
        [
            compute(fixed, {name: x[g] for name, x in groups.items()}, {'x': steps['x'][g, n]}, jnp.asarray(n))
            for g in range(GROUPS)
            for n in range(STEPS)
        ]
    )


def test_results_and_gradients_are_those_of_each_step_by_itself():
    fixed, groups, steps = arrays()
    turn = np.cos(np.arange(GROUPS * STEPS * S * M, dtype=np.float32)).reshape(-1, S, M)

    def loss(groups: dict[str, Array], steps: dict[str, Array], way: Callable) -> tuple[Array, Array]:
        out = way(jax.tree.map(jnp.asarray, fixed), groups, steps)
        return (out * turn).sum(), out

    ways = functools.partial(map_group_steps, compute), at_once
    both = jax.jit(lambda *x: [jax.grad(loss, (0, 1), has_aux=True)(*x, way) for way in ways])
    (gradients, out), (expected_gradients, expected) = both(groups, steps)
    assert_close(out, expected)
    assert_close(gradients, expected_gradients, gradient=True)


def test_rows_may_be_mapped():
    fixed, groups, steps = arrays()
    rows = {'x': np.stack([steps['x'], 2.0 * steps['x']])}

    @jax.jit
    def both(fixed: dict, groups: dict, rows: dict) -> tuple[Array, Array]:
        found = jax.vmap(lambda x: map_group_steps(compute, fixed, groups, x))(rows)
        return found[1], at_once(fixed, groups, {'x': rows['x'][1]})

    assert_close(*both(fixed, groups, rows))
