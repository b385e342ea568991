"""Tests the scan's mask of the state, and that its backward pass does not add weight gradients position by position."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.recurrence.run_cell import LearnedCell, run_cell
from tests.attention.cells import quick
from tests.recurrence.test_run_cell import RNG, SEGMENTS, B, X, cell_named, operands_of
from tests.tolerances import assert_close


@pytest.mark.parametrize('name', ['gru', 'lstm', 'sru2'])
def test_a_mask_multiplies_the_state_in_its_product_alone(name: str):
    """A mask of ones changes nothing; with a mask of zeros the product reads no state, as with recurrent weights of
    zero.
    """
    cell, units = cell_named(name)
    p = operands_of(cell, units)
    matrix = 'diagonal' if cell.is_diagonal else 'recurrent'
    mask = RNG.integers(0, 2, (B, units)).astype(np.float32) * 2
    step = np.float32(1e-2) * np.sign(p[matrix])

    def loss(matrix_of: jax.Array) -> jax.Array:
        return jnp.square(
            run_cell(LearnedCell(cell, p | {matrix: matrix_of}), X, SEGMENTS, state_mask_BU=mask)[0]
        ).sum()

    @quick
    def all_ways(matrix_of: jax.Array) -> tuple:
        def run(factor: float, mask_BU: jax.Array | None) -> jax.Array:
            return run_cell(LearnedCell(cell, p | {matrix: factor * matrix_of}), X, state_mask_BU=mask_BU)[0]

        outs = run(1.0, jnp.zeros((B, units))), run(0.0, None), run(1.0, jnp.ones((B, units))), run(1.0, None)
        return outs, jax.grad(loss)(matrix_of), loss(matrix_of + step), loss(matrix_of - step)

    (masked, without, whole, plain), gradient, ahead, behind = jax.device_get(all_ways(p[matrix]))
    assert_close(masked, without)
    assert_close(whole, plain)
    assert_close((gradient * step).sum(), (ahead - behind) / 2, gradient=True)


def loops(jaxpr: Any) -> Any:
    """Returns the bodies of all scans in a program."""
    for equation in jaxpr.eqns:
        for one in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, 'jaxpr')):
            if hasattr(one, 'jaxpr'):
                if equation.primitive.name == 'scan':
                    yield one.jaxpr
                yield from loops(one.jaxpr)


def test_no_scan_carries_or_adds_up_the_gradient_of_a_matrix():
    cell, units = cell_named('lstm')
    p = operands_of(cell, units)
    program = jax.make_jaxpr(jax.grad(lambda p: run_cell(LearnedCell(cell, p), X)[0].sum()))(p)
    bodies = list(loops(program.jaxpr))
    assert len(bodies) == 2  # One scan is the forward pass and one the backward pass.
    shapes = [variable.aval.shape for body in bodies for equation in body.eqns for variable in equation.outvars]
    assert (B, units) in shapes and p['recurrent'].shape not in shapes
