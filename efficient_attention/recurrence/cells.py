"""Defines the recurrent cells (tanh, GRU, LSTM and SRU) and a table of all cells by name.

A step maps a position's gates, recurrent products and earlier states to new states. Steps are element-wise; scan.py
computes the products.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.recurrence.cell_interface import Cell, CellOperand, States

SRU_SCALE = math.sqrt(3.0)  # scale of SRU's highway input: sqrt(1 + 2 exp(b_r)) for b_r = 0


def tanh_step(gates: tuple[Array, ...], recurrent: tuple[Array, ...], states: States) -> States:
    """Returns the new state of the plain recurrent cell (Elman 1990): h = tanh(W x + b + U h + b')."""
    del recurrent, states
    return gates


def gru_step(gates: tuple[Array, ...], recurrent: tuple[Array, ...], states: States) -> States:
    """Returns the new state of the gated recurrent unit (GRU), in the form that torch and cuDNN use.

    The reset gate multiplies the recurrent product: r, z = sigma(W x + b + U h + b'), n = tanh(W x + b + r (U h + b'));
    h = (1 - z) n + z h'. Gates are in the order r, z, n. With b' = 0 it equals nnx's `GRUCell`. In the original unit
    (Cho et al. 2014, arXiv 1406.1078, equation 8) the reset gate multiplies the state before its product: n = tanh(W x
    + U (r h)).
    """
    # Two products give the gates r and z, because one joint product for both gates was slower overall.
    # Slicing a joint product made the next line take eight times as long, which cost more than the joint product saved.
    r, z = (jnp.tanh(0.5 * (g + u)) for g, u in zip(gates[:2], recurrent[:2], strict=True))
    n = jnp.tanh(gates[2] + (0.5 + 0.5 * r) * recurrent[2])
    return (n + (0.5 + 0.5 * z) * (states[0] - n),)


def lstm_step(gates: tuple[Array, ...], recurrent: tuple[Array, ...], states: States) -> States:
    """Returns the new states h and c of the LSTM (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al.
    2000).

    i, f, o = sigma(W x + b + U h), g = tanh(W x + b + U h); c = f c' + i g; h = o tanh(c). Gates are in the order i, f,
    g, o, as in torch and in nnx's `OptimizedLSTMCell`; this bias is the sum of torch's two biases.
    """
    del recurrent
    i, f, g, o = gates
    c = (0.5 + 0.5 * f) * states[1] + (0.5 + 0.5 * i) * g
    return (0.5 + 0.5 * o) * jnp.tanh(c), c


def sru_step(gates: tuple[Array, ...], recurrent: tuple[Array, ...], states: States) -> States:
    """Returns the new state c of the simple recurrent unit (Lei et al. 2018, arXiv 1709.02755); `sru` has the
    formulas.
    """
    f = jax.nn.sigmoid(gates[1] + recurrent[0] if recurrent else gates[1])
    return (gates[0] + f * (states[0] - gates[0]),)


def sru_output(
    product: tuple[Array, ...],
    x: Array,
    before: States,
    after: States,
    operands: dict[str, Array],
    *,
    has_state: bool,
) -> Array:
    """Returns the output h of the simple recurrent unit at all positions."""
    r = jax.nn.sigmoid(product[2] + operands['reset'][None, None] * before[0] if has_state else product[2])
    past = x if len(product) < 4 else product[3]
    return r * after[0] + (1 - r) * SRU_SCALE * past


def sru(version: int, *, has_past: bool) -> Cell:
    """Returns version 1 or 2 of the simple recurrent unit (SRU).

        u0, u1, u2 = W x
        f = sigma(u1 + v_f c' + b_f)
        r = sigma(u2 + v_r c' + b_r)
        c = f c' + (1 - f) u0
        h = r c + (1 - r) sqrt(3) x

    c' is the state before; u0 has no bias; sqrt(3) is the paper's scale for gates without bias. In version 1, v_f and
    v_r are zero, as in its released code. There is no product of the state with a matrix: the scan is element-wise, and
    everything except c is computed for all positions at once.

    Args:
        version: 1 = no gate reads the state | 2 = both gates do.
        has_past: whether a product of the input, instead of the input x, bypasses the cell, because widths differ.
    """
    operands = {'input': CellOperand('Dg', 'D'), 'bias': CellOperand('b')}
    if version == 2:
        operands |= {'diagonal': CellOperand('U'), 'reset': CellOperand('U')}
    return Cell(
        f'sru{version}',
        (1,) * (3 + has_past),
        states=1,
        recurrent=int(version == 2),
        operands=operands,
        step=sru_step,
        scanned=2,
        biased=(1, 3),
        is_diagonal=True,
        output=functools.partial(sru_output, has_state=version == 2),
    )


INPUT, RECURRENT = CellOperand('Dg', 'U'), CellOperand('Ug', 'U')
TANH_OPERANDS = {'input': INPUT, 'bias': CellOperand('g'), 'recurrent': RECURRENT}
TANH = Cell('tanh', (1,), states=1, recurrent=1, operands=TANH_OPERANDS, step=tanh_step, scales=(1.0,))
GRU_OPERANDS = {'input': INPUT, 'bias': CellOperand('g'), 'recurrent': RECURRENT, 'recurrent_bias': CellOperand('g')}
GRU = Cell('gru', (1, 1, 1), states=1, recurrent=3, operands=GRU_OPERANDS, step=gru_step)
LSTM_OPERANDS = {'input': INPUT, 'bias': CellOperand('g'), 'recurrent': RECURRENT}
LSTM_SCALES = (0.5, 0.5, 1.0, 0.5)
LSTM = Cell('lstm', (4,), states=2, recurrent=4, operands=LSTM_OPERANDS, step=lstm_step, scales=LSTM_SCALES)

# Maps each name to two cells: for inputs as wide as the state, and for inputs of another width. Add new cells here.
CELLS: dict[str, tuple[Cell, Cell]] = {
    'tanh': (TANH, TANH),
    'gru': (GRU, GRU),
    'lstm': (LSTM, LSTM),
    'sru1': (sru(1, has_past=False), sru(1, has_past=True)),
    'sru2': (sru(2, has_past=False), sru(2, has_past=True)),
}


def find_cell(name: str, input_width: int, units: int) -> Cell:
    """Returns the recurrent cell of this name for the given widths of input and state; raises ValueError for an unknown
    name.
    """
    if name not in CELLS:
        raise ValueError(f'unknown cell {name!r}; known: {", ".join(CELLS)}')
    return CELLS[name][input_width != units]
