"""Runs a recurrent cell over rows of vectors: one matrix product for the inputs of all positions, then one scan.

A position reads the state of earlier positions in its segment. The state is zeros where a segment begins. Padding,
segment 0, is allowed anywhere: it does not change the state, and its output is zeros.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.device_mesh import is_axis_sharded
from efficient_attention.recurrence.cell_interface import Cell, States
from efficient_attention.recurrence.scan import ScanMasks, scan_states, states_before

SPLIT = ('recurrent', 'recurrent_bias')  # learned arrays with an axis that concatenates all gates


class RecurrentState(NamedTuple):
    """The state of a recurrent cell after the positions that it has read so far.

    Args:
        vectors: float32 [B, U] each.
        segments_B: int32, segment of the last token that is not padding; 0 = no token yet, and the vectors are ignored.
    """

    vectors: States
    segments_B: Array


class LearnedCell(NamedTuple):
    """A recurrent cell together with its learned arrays.

    The arrays fit the widths D and U that were given to `cells.find_cell`.
    """

    cell: Cell
    operands: dict[str, Array]

    @property
    def units(self) -> int:
        """The width of the cell's state, U."""
        return self.operands['input'].shape[1] // self.cell.gate_count

    def split_into_blocks(self) -> dict[str, tuple[Array, ...]]:
        """Returns the cell's learned arrays for the scan; an array that concatenates all gates is split into one array
        per block of gates.
        """
        (cell, operands), units = self, self.units
        found = {name: cell.split_gate_blocks(operands[name], units) for name in SPLIT if name in operands}
        found |= {'diagonal': (operands['diagonal'],)} if 'diagonal' in operands else {}
        if 'bias' in operands:
            first, end = cell.biased or (0, cell.gate_count)
            whole = jnp.pad(operands['bias'], (first * units, (cell.gate_count - end) * units))
            found['bias'] = cell.split_gate_blocks(whole, units)
        return found

    def input_products(self, x_LBD: Array) -> tuple[Array, ...]:
        """Multiplies the inputs of all positions with the cell's input matrices; returns one array [L, B, n U] for each
        block of n gates of width U.

        The products have the dtype of the inputs.
        """
        kernels = self.cell.split_gate_blocks(self.operands['input'].astype(x_LBD.dtype), self.units)
        if is_axis_sharded('B'):  # joining a sharded axis with another axis would gather the sharded one
            return tuple(jnp.einsum('lbd,dg->lbg', x_LBD, kernel) for kernel in kernels)
        x_XD = jax.lax.collapse(x_LBD, 0, 2)
        return tuple((x_XD @ kernel).reshape(*x_LBD.shape[:2], -1) for kernel in kernels)

    def empty_state(self, rows: int) -> RecurrentState:
        """Returns the recurrent state before the first token."""
        return RecurrentState((jnp.zeros((rows, self.units)),) * self.cell.states, jnp.zeros(rows, jnp.int32))


def run_cell(
    learned: LearnedCell,
    x_BLD: Array,
    segments_BL: Array | None = None,
    *,
    state: RecurrentState | None = None,
    is_reversed: bool = False,
    state_mask_BU: Array | None = None,
    chunk: int = 0,
) -> tuple[Array, RecurrentState]:
    """Runs a recurrent cell over each row; returns the cell's output at each position, [B, L, U] in x's dtype, and its
    final state.

    Args:
        learned: the cell.
        x_BLD: inputs.
        segments_BL: 0 = padding; 1, 2, ... = packed texts; None = all positions are one text.
        state: the state after earlier positions; a text continues from it if its segment equals the state's segment.
        is_reversed: whether each position reads later positions instead of earlier ones.
        state_mask_BU: multiplies the state where the recurrent product reads it, equal at all positions: state dropout
            (Gal & Ghahramani 2016, arXiv 1512.05287).
        chunk: number of positions whose products and states are stored at a time for gradients; the rest is recomputed.
            0 = store all positions.
    """
    begins_at_zero = segments_BL is None and state is None
    state = learned.empty_state(len(x_BLD)) if state is None else state
    if begins_at_zero:
        state = state._replace(segments_B=jnp.ones_like(state.segments_B))
    elif segments_BL is None:  # all positions continue the text of the given state
        segments_BL = jnp.broadcast_to(jnp.maximum(state.segments_B, 1)[:, None], x_BLD.shape[:2])
    if is_reversed:
        x_BLD, segments_BL = x_BLD[:, ::-1], None if segments_BL is None else segments_BL[:, ::-1]
    out_BLU, state = _in_chunks(learned, x_BLD, segments_BL, state, state_mask_BU, chunk)
    return out_BLU[:, ::-1] if is_reversed else out_BLU, state


def run_cell_on_input_product(
    learned: LearnedCell,
    product_BLX: Array,
    x_BLD: Array,
    segments_BL: Array,
    *,
    state: RecurrentState,
    state_mask_BU: Array | None = None,
) -> tuple[Array, RecurrentState]:
    """Runs a recurrent cell as `run_cell` does, but from given input products [B, L, g U] instead of computing them
    with the input matrices.

    The inputs `x_BLD` are used only by cells with a highway connection (SRU).
    """
    products = learned.cell.split_gate_blocks(product_BLX.swapaxes(0, 1), learned.units)
    return _run_products(learned, products, x_BLD.swapaxes(0, 1), segments_BL, state, state_mask_BU)


def _in_chunks(
    learned: LearnedCell,
    x_BLD: Array,
    segments_BL: Array | None,
    state: RecurrentState,
    state_mask_BU: Array | None,
    chunk: int,
) -> tuple[Array, RecurrentState]:
    def run(state: RecurrentState, inputs: tuple[Array, Array | None]) -> tuple[RecurrentState, Array]:
        out_BLU, state = _recur_unchunked(learned, *inputs, state, state_mask_BU)
        return state, out_BLU

    length = x_BLD.shape[1]
    if not 0 < chunk < length:
        state, out_BLU = run(state, (x_BLD, segments_BL))
        return out_BLU, state
    extra = -length % chunk
    if segments_BL is None and extra:
        segments_BL = jnp.ones(x_BLD.shape[:2], jnp.int32)

    def cut(x: Array) -> Array:
        padded = jnp.pad(x, [(0, 0), (0, extra)] + [(0, 0)] * (x.ndim - 2))
        return padded.reshape(len(x), -1, chunk, *x.shape[2:]).swapaxes(0, 1)

    inputs = jax.tree.map(cut, (x_BLD, segments_BL))
    state, chunks = jax.lax.scan(jax.checkpoint(run, prevent_cse=False), state, inputs)
    return jax.lax.collapse(chunks.swapaxes(0, 1), 1, 3)[:, :length], state


def _recur_unchunked(
    learned: LearnedCell, x_BLD: Array, segments_BL: Array | None, state: RecurrentState, state_mask_BU: Array | None
) -> tuple[Array, RecurrentState]:
    """Runs a recurrent cell over all positions in a single scan, without chunks; returns its output at each position
    and its final state.

    If `segments_BL` is None, each row is one text without padding.
    """
    x_LBD = jax.lax.optimization_barrier(x_BLD.swapaxes(0, 1))
    return _run_products(learned, learned.input_products(x_LBD), x_LBD, segments_BL, state, state_mask_BU)


def _run_products(
    learned: LearnedCell,
    products: tuple[Array, ...],
    x_LBD: Array,
    segments_BL: Array | None,
    state: RecurrentState,
    state_mask_BU: Array | None,
) -> tuple[Array, RecurrentState]:
    cell, operands = learned
    read, scanned = learned.split_into_blocks(), cell.scanned or len(products)
    fixed, newest_B = ScanMasks(state_mask_BU=state_mask_BU), state.segments_B
    if segments_BL is not None:
        before_BL, newest_B = _segments_before(segments_BL, state.segments_B)
        holds_BL = segments_BL == 0
        fixed = ScanMasks(((segments_BL != before_BL) & ~holds_BL).T, holds_BL.T, state_mask_BU)
    scanned_biases = {name: one[:scanned] for name, one in read.items() if name == 'bias'}
    after = scan_states(cell, products[:scanned], read | scanned_biases, state.vectors, fixed)
    out_LBU = after[0]
    if cell.output is not None:
        gates = tuple(one.astype(jnp.float32) + b[None, None] for one, b in zip(products, read['bias'], strict=True))
        before = states_before(fixed, state.vectors, after)
        out_LBU = cell.output(gates, x_LBD.astype(jnp.float32), before, after, operands)
    if fixed.holds_LB is not None:
        out_LBU = jnp.where(fixed.holds_LB[..., None], 0.0, out_LBU)
    return out_LBU.astype(x_LBD.dtype).swapaxes(0, 1), RecurrentState(tuple(one[-1] for one in after), newest_B)


def _segments_before(segments_BL: Array, newest_B: Array) -> tuple[Array, Array]:
    """Returns the segment of the last token before each position, and of the last token of the row; padding is
    skipped.
    """
    segments = jnp.concatenate([newest_B.astype(segments_BL.dtype)[:, None], segments_BL], axis=1)
    places = jnp.where(segments != 0, jnp.arange(segments.shape[1])[None], 0)
    newest = jnp.take_along_axis(segments, jax.lax.cummax(places, axis=1), axis=1)
    return newest[:, :-1], newest[:, -1].astype(newest_B.dtype)
