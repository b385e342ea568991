"""Defines the interface of recurrent cells, with which one scan can run every kind of cell.

g counts the gates of a cell, each U wide.
"""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

# The state arrays [B, U] that a cell passes to the next position; the recurrent product reads the first of them.
States = tuple[Array, ...]


@dataclasses.dataclass(frozen=True)
class CellOperand:
    """The description of a learned array of a recurrent cell: its shape and its initial scale.

    Args:
        shape: dimension letters: 'U' state width, 'D' input width, 'g' all gates concatenated, 'b' all gates with a
            bias concatenated.
        fan_in: the letter whose size sets the scale of a matrix's initial values; '' = the initial values are zero.
    """

    shape: str
    fan_in: str = ''


@dataclasses.dataclass(frozen=True)
class Cell:
    """The description of a recurrent cell: its gates, its state arrays, its learned arrays and its step function.

    Args:
        name: the name in configs.
        blocks: number of gates n per input product; each product is [B, L, n U] for all positions at once. A gate that
            is used separately is faster as a separate product.
        states: number of state arrays.
        recurrent: number of gates, from the first on, with a product of the first state; 0 = none.
        operands: learned arrays by name: 'input' and 'bias' of the input products, 'recurrent' or 'diagonal' and
            'recurrent_bias' of the recurrent product, and others that `output` reads.
        step: element-wise function (gates, recurrent products, earlier states) -> new states, of arrays [B, U] at one
            position. The gates are input products, except for the first block if there are `scales`.
        scales: per gate of the first block, which `step` then reads as tanh(scale (input + recurrent product)),
            computed for the full block at once. With scale 1/2, the sigmoid is (1 + gate) / 2. `step` then gets only
            the other blocks' recurrent products.
        scanned: number of blocks that the step reads, from the first on; 0 = all.
        biased: first gate and exclusive end of the gates with 'bias'; None = all.
        is_diagonal: whether the recurrent product is element-wise, with one number per unit instead of a matrix.
        output: element-wise function over all positions (gate products, input [..., D], states before, states after,
            operands) -> output [..., U]; None = the first state after each position.
    """

    name: str
    blocks: tuple[int, ...]
    states: int
    recurrent: int
    operands: dict[str, CellOperand] = dataclasses.field(hash=False)
    step: Callable[[tuple[Array, ...], tuple[Array, ...], States], States]
    scales: tuple[float, ...] = ()
    scanned: int = 0
    biased: tuple[int, int] | None = None
    is_diagonal: bool = False
    output: Callable[[tuple[Array, ...], Array, States, States, dict[str, Array]], Array] | None = None

    @property
    def gate_count(self) -> int:
        """The number of gates of the recurrent cell, over all blocks of gates."""
        return sum(self.blocks)

    def split_gate_blocks(self, x: Array, units: int) -> tuple[Array, ...]:
        """Splits an array whose last axis concatenates the values of all gates of a cell (U per gate) into one array
        per block of gates.
        """
        ends = [units * sum(self.blocks[:count]) for count in range(1, len(self.blocks))]
        return tuple(jnp.split(x, ends, axis=-1))
