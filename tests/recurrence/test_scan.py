"""The scan's mask of the state, and a backward pass that adds nothing up position by position."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from efficient_attention.recurrence.recur import LearnedCell, recur
from tests.recurrence.test_recur import RNG, SEGMENTS, B, X, cell_named, operands_of
from tests.tolerances import assert_close


@pytest.mark.parametrize('name', ['gru', 'lstm', 'sru2'])
def test_a_mask_multiplies_the_state_in_its_product_alone(name: str):
    """Of ones it is no mask; of zeros no state is read by the product, as with a recurrent array of zeros."""
    cell, units = cell_named(name)
    p = operands_of(cell, units)
    matrix = 'diagonal' if cell.is_diagonal else 'recurrent'
    masked = recur(LearnedCell(cell, p), X, state_mask_BU=jnp.zeros((B, units)))[0]
    assert_close(masked, recur(LearnedCell(cell, p | {matrix: jnp.zeros_like(p[matrix])}), X)[0])
    assert_close(
        recur(LearnedCell(cell, p), X, state_mask_BU=jnp.ones((B, units)))[0], recur(LearnedCell(cell, p), X)[0]
    )

    def loss(p: dict, mask: jax.Array) -> jax.Array:
        return jnp.square(recur(LearnedCell(cell, p), X, SEGMENTS, state_mask_BU=mask)[0]).sum()

    mask = jnp.asarray(RNG.integers(0, 2, (B, units)) * 2.0)
    step = 1e-2 * jnp.sign(p[matrix])
    slope = (loss(p | {matrix: p[matrix] + step}, mask) - loss(p | {matrix: p[matrix] - step}, mask)) / 2
    found = (jax.grad(loss)(p, mask)[matrix] * step).sum()
    assert_close(found, slope, gradient=True)


def loops(jaxpr: Any) -> Any:
    """The bodies of all scans of a program."""
    for equation in jaxpr.eqns:
        for one in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, 'jaxpr')):
            if hasattr(one, 'jaxpr'):
                if equation.primitive.name == 'scan':
                    yield one.jaxpr
                yield from loops(one.jaxpr)


def test_no_scan_carries_or_adds_up_the_gradient_of_a_matrix():
    cell, units = cell_named('lstm')
    p = operands_of(cell, units)
    program = jax.make_jaxpr(jax.grad(lambda p: recur(LearnedCell(cell, p), X)[0].sum()))(p)
    bodies = list(loops(program.jaxpr))
    assert len(bodies) == 2  # forward and backward
    shapes = [variable.aval.shape for body in bodies for equation in body.eqns for variable in equation.outvars]
    assert (B, units) in shapes and p['recurrent'].shape not in shapes
