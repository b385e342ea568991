"""The recurrent sub-layer: stores the learned arrays of a recurrent cell, and calls `run_cell` once per direction."""

import math
from typing import Unpack

import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.device_mesh import gather_parameter, shard_activations
from efficient_attention.attention.dropout import dropout
from efficient_attention.attention.request import AnySegments
from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.layer_constructors import kernel_init, linear
from efficient_attention.modules.layer_context import (
    AttentionMemory,
    Context,
    ContextOptions,
    fold_into_key,
    make_context,
)
from efficient_attention.recurrence.cell_interface import CellOperand
from efficient_attention.recurrence.cells import find_cell
from efficient_attention.recurrence.run_cell import LearnedCell, RecurrentState, run_cell, run_cell_on_input_product

MATRIX_AXES = 'DE'  # axis letters, which determine how a matrix is sharded over a mesh


class RecurrentSubLayer(nnx.Module):
    """A recurrent sub-layer, which runs a cell over each row, [B, L, D] -> [B, L, D]; `bidirectional` adds a second
    cell that runs over the row backwards.

    The state is zeros at the start of a text, and padding does not change it. If the concatenated outputs differ in
    width from the layer, a matrix projects them to the layer's width.
    """

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.forward = CellParameters(config, rngs=rngs)
        self.backward = CellParameters(config, rngs=rngs) if config.bidirectional else None
        wide = config.recurrent_state_width * (1 + config.bidirectional)
        self.out = linear(config, wide, config.width, rngs, use_bias=False) if wide != config.width else None

    def __call__(self, x_BLD: Array, segments_BL: AnySegments, **options: Unpack[ContextOptions]) -> Array:
        """Returns the sub-layer's output [B, L, D], without the states that `run` also returns.

        `segments_BL` is an array or `Lengths`. The other arguments are the fields of `Context`; positions are not
        used.
        """
        return self.run(x_BLD, make_context(segments_BL, jnp.zeros(x_BLD.shape[:2], jnp.int32), **options))[0]

    def run(self, x_BLD: Array, context: Context) -> tuple[Array, tuple[RecurrentState, ...]]:
        """Returns the sub-layer's output, and the final state of each direction.

        The method uses these fields of the context: the segments; `memory`, the state of each direction before the
        first position; `rng`, which enables state dropout; `product_BLX`, which replaces `input_product`.
        """
        segments_BL, rng, memory = context.segments_BL, context.rng, context.memory
        cells = [cell.learned() for cell in (self.forward, self.backward) if cell is not None]
        assert memory is None or not isinstance(memory, AttentionMemory)
        states = tuple(cell.empty_state(len(x_BLD)) for cell in cells) if memory is None else memory
        masks = [self.state_mask(len(x_BLD), fold_into_key(rng, number)) for number in range(len(cells))]
        if context.product_BLX is not None:
            product_BLX, mask_BU = context.product_BLX, masks[0]
            out, state = run_cell_on_input_product(
                cells[0], product_BLX, x_BLD, segments_BL, state=states[0], state_mask_BU=mask_BU
            )
            return self.concatenate_directions([out]), (state,)
        found = [
            run_cell(
                cell,
                x_BLD,
                segments_BL,
                state=states[number],
                is_reversed=number == 1,
                state_mask_BU=masks[number],
                chunk=self.config.recurrent_chunk,
            )
            for number, cell in enumerate(cells)
        ]
        return self.concatenate_directions([out for out, _ in found]), tuple(state for _, state in found)

    def concatenate_directions(self, outs: list[Array]) -> Array:
        """Returns the outputs of all directions, concatenated and projected to the layer's width."""
        out = outs[0] if len(outs) == 1 else jnp.concatenate(outs, axis=-1)
        return shard_activations(out if self.out is None else self.out(out), 'BLD')

    def input_product(self, x_BLD: Array) -> Array:
        """Returns the product of the input with the input matrices of all g gates of a cell with U units, [B, L, g x
        U].
        """
        return x_BLD @ self.forward.learned().operands['input'].astype(x_BLD.dtype)

    def state_mask(self, rows: int, rng: Array | None) -> Array | None:
        """Returns the dropout mask of a recurrent state of U units, [B, U]; None without dropout."""
        rate = self.config.state_dropout_rate
        return (
            None if rng is None or not rate else dropout(jnp.ones((rows, self.config.recurrent_state_width)), rate, rng)
        )

    def empty_state(self, rows: int) -> RecurrentState:
        """Returns the recurrent state before the first token."""
        return self.forward.learned().empty_state(rows)

    def run_with_cache(self, x_BnD: Array, context: Context, state: RecurrentState) -> tuple[Array, RecurrentState]:
        """Returns the output for new tokens in incremental decoding, and the recurrent state after them."""
        out_BnD, states = self.run(x_BnD, context._replace(memory=(state,)))
        return out_BnD, states[0]


class CellParameters(nnx.Module):
    """The learned arrays of the recurrent cell that the config selects, named like the cell's operands."""

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        self.cell = find_cell(config.cell, config.width, config.recurrent_state_width)
        for name, operand in self.cell.operands.items():
            setattr(self, name, nnx.Param(self.initial_values(config, operand, rngs)))

    def initial_values(self, config: LayerConfig, operand: CellOperand, rngs: nnx.Rngs) -> Array:
        """Returns the initial values of one learned array of the recurrent cell."""
        first, end = self.cell.biased or (0, self.cell.gate_count)
        sizes = {
            'D': config.width,
            'U': config.recurrent_state_width,
            'g': self.cell.gate_count * config.recurrent_state_width,
        }
        sizes['b'] = (end - first) * config.recurrent_state_width
        shape = [sizes[letter] for letter in operand.shape]
        if not operand.fan_in:
            return jnp.zeros(shape)
        return kernel_init(config, 1.0 / math.sqrt(sizes[operand.fan_in]))(rngs.params(), shape, jnp.float32)

    def learned(self) -> LearnedCell:
        """Returns the recurrent cell together with its learned arrays; sharded matrices are gathered."""
        arrays = {name: jnp.asarray(getattr(self, name)[...]) for name in self.cell.operands}
        return LearnedCell(
            self.cell, {name: gather_parameter(x, MATRIX_AXES) if x.ndim == 2 else x for name, x in arrays.items()}
        )
