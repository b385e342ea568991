"""A loop over groups and their steps: results, gradients, and steps that are not computed for nothing."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from efficient_attention.attention.synthesizer.map_steps import map_steps
from tests.tolerances import assert_close

GROUPS, STEPS, S, M = 3, 4, 5, 6


def compute(fixed: dict[str, Array], group: dict[str, Array], step: dict[str, Array], number: Array) -> Array:
    mask_SM = fixed['number_nS'][number][:, None] != fixed['number_1M']
    return jnp.where(mask_SM, jnp.sin(step['x'] * group['y'][None]) + group['z'][None], 0.0)


def arrays() -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
    rng = np.random.default_rng(0)
    fixed = {
        'number_nS': jnp.asarray(rng.integers(0, 3, (STEPS, S))),
        'number_1M': jnp.asarray(rng.integers(0, 3, (1, M))),
    }
    groups = {name: jnp.asarray(rng.normal(size=(GROUPS, M)), jnp.float32) for name in 'yz'}
    return fixed, groups, {'x': jnp.asarray(rng.normal(size=(GROUPS, STEPS, S, M)), jnp.float32)}


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
    turn = jnp.cos(jnp.arange(GROUPS * STEPS * S * M, dtype=jnp.float32)).reshape(-1, S, M)
    assert_close(jax.jit(map_steps, static_argnums=0)(compute, fixed, groups, steps), at_once(fixed, groups, steps))

    def loss(groups: dict[str, Array], steps: dict[str, Array]) -> Array:
        return (map_steps(compute, fixed, groups, steps) * turn).sum()

    def expected(groups: dict[str, Array], steps: dict[str, Array]) -> Array:
        return (at_once(fixed, groups, steps) * turn).sum()

    found = jax.jit(jax.grad(loss, (0, 1)))(groups, steps)
    assert_close(found, jax.jit(jax.grad(expected, (0, 1)))(groups, steps), gradient=True)


def test_rows_may_be_mapped():
    fixed, groups, steps = arrays()
    rows = {'x': jnp.stack([steps['x'], 2.0 * steps['x']])}
    found = jax.vmap(lambda x: map_steps(compute, fixed, groups, x))(rows)
    assert_close(found[1], at_once(fixed, groups, {'x': rows['x'][1]}))
