"""The simple recurrent unit, version 1 and 2 (Lei et al. 2018, arXiv 1709.02755).

u0, u1, u2 = W x; f = sigma(u1 + v_f c' + b_f), r = sigma(u2 + v_r c' + b_r), c = f c' + (1 - f) u0; with c' the state
before, out goes r c + (1 - r) sqrt(3) x; u0 has no bias, and sqrt(3) is the paper's scale for gates without one. In
version 1 v_f and v_r are zero, as in its released code. No product of the state with a matrix is left: the scan is
element-wise, and all but c is computed for all positions at once.
"""

import functools
import math

import jax
from jax import Array

from efficient_attention.recurrence.cell import Cell, Operand, States

SCALE = math.sqrt(3.0)  # of the input that goes past the cell: sqrt(1 + 2 exp(b_r)) for b_r = 0


def step(gates: tuple[Array, ...], recurrent: tuple[Array, ...], states: States) -> States:
    """c after a position."""
    f = jax.nn.sigmoid(gates[1] + recurrent[0] if recurrent else gates[1])
    return (gates[0] + f * (states[0] - gates[0]),)


def output(
    product: tuple[Array, ...],
    x: Array,
    before: States,
    after: States,
    operands: dict[str, Array],
    *,
    has_state: bool,
) -> Array:
    """h of all positions."""
    r = jax.nn.sigmoid(product[2] + operands['reset'][None, None] * before[0] if has_state else product[2])
    past = x if len(product) < 4 else product[3]
    return r * after[0] + (1 - r) * SCALE * past


def cell(version: int, *, has_past: bool) -> Cell:
    """The cell of a version.

    Args:
        version: 1 = no gate reads the state | 2 = both do.
        has_past: whether what goes past the cell is a product of the input, as widths differ, in place of the input.
    """
    operands = {'input': Operand('Dg', 'D'), 'bias': Operand('b')}
    if version == 2:
        operands |= {'diagonal': Operand('U'), 'reset': Operand('U')}
    return Cell(
        f'sru{version}',
        (1,) * (3 + has_past),
        states=1,
        recurrent=int(version == 2),
        operands=operands,
        step=step,
        scanned=2,
        biased=(1, 3),
        is_diagonal=True,
        output=functools.partial(output, has_state=version == 2),
    )
