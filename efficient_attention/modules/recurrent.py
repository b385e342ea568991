"""The recurrent sub-layer: a cell's learned arrays, and one call into `recur` for each direction."""

import math

import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.device_mesh import gathered, spread
from efficient_attention.attention.dropout import dropout
from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.context import fold
from efficient_attention.modules.parameters import kernel_init
from efficient_attention.recurrence.cell import Operand
from efficient_attention.recurrence.recur import LearnedCell, State, recur
from efficient_attention.recurrence.registry import cell_of

MATRIX_AXES = 'DE'  # by which the matrices lie on a mesh


class Recurrent(nnx.Module):
    """A recurrent cell over the row, [B, L, D] -> [B, L, D]; with `bidirectional` half of the units in each direction.

    A text's state begins with zeros and padding leaves it as it is.
    """

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.forward = CellParameters(config, rngs=rngs)
        self.backward = CellParameters(config, rngs=rngs) if config.bidirectional else None

    def __call__(self, x_BLD: Array, segments_BL: Array, *, rng: Array | None = None) -> Array:
        """The sub-layer's output; `rng` (a key, or one a row) turns dropout of the state on."""
        outs = [
            recur(
                cell.learned(),
                x_BLD,
                segments_BL,
                is_reversed=number == 1,
                state_mask_BU=self.state_mask(len(x_BLD), fold(rng, number)),
                chunk=self.config.recurrent_chunk,
            )[0]
            for number, cell in enumerate((self.forward, self.backward))
            if cell is not None
        ]
        return spread(outs[0] if len(outs) == 1 else jnp.concatenate(outs, axis=-1), 'BLD')

    def state_mask(self, rows: int, rng: Array | None) -> Array | None:
        """What the state is multiplied by, [B, U]; None without dropout."""
        rate = self.config.state_dropout_rate
        return None if rng is None or not rate else dropout(jnp.ones((rows, self.config.units)), rate, rng)

    def empty_state(self, rows: int) -> State:
        """The state before any token."""
        return self.forward.learned().empty_state(rows)

    def go_on(self, x_BnD: Array, segments_Bn: Array, state: State) -> tuple[Array, State]:
        """The output for new tokens behind those of the state, without dropout, and the state after them."""
        return recur(self.forward.learned(), x_BnD, segments_Bn, state=state)


class CellParameters(nnx.Module):
    """The learned arrays of a config's cell, by the names of its operands."""

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        self.cell = cell_of(config.cell, config.width, config.units)
        for name, operand in self.cell.operands.items():
            setattr(self, name, nnx.Param(self.drawn(config, operand, rngs)))

    def drawn(self, config: LayerConfig, operand: Operand, rngs: nnx.Rngs) -> Array:
        """The initial values of an operand."""
        first, end = self.cell.biased or (0, self.cell.gates)
        sizes = {'D': config.width, 'U': config.units, 'g': self.cell.gates * config.units}
        sizes['b'] = (end - first) * config.units
        shape = [sizes[letter] for letter in operand.shape]
        if not operand.fan_in:
            return jnp.zeros(shape)
        return kernel_init(config, 1.0 / math.sqrt(sizes[operand.fan_in]))(rngs.params(), shape, jnp.float32)

    def learned(self) -> LearnedCell:
        """The cell with its arrays, matrices gathered where a mesh splits them."""
        arrays = {name: jnp.asarray(getattr(self, name)[...]) for name in self.cell.operands}
        return LearnedCell(
            self.cell, {name: gathered(x, MATRIX_AXES) if x.ndim == 2 else x for name, x in arrays.items()}
        )
