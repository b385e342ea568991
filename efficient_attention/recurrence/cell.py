"""What a recurrent cell promises, so that one scan serves them all.

g counts the gates of a cell, each U wide.
"""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

# The arrays that a cell keeps from one position to the next, [B, U] each; the first is read by the recurrent product.
States = tuple[Array, ...]


@dataclasses.dataclass(frozen=True)
class Operand:
    """A learned array of a cell, which the module that holds the cell makes.

    Args:
        shape: of dimension letters: 'U' the state's width, 'D' the input's, 'g' all gates together, one after another,
            'b' likewise those with a bias.
        fan_in: the letter whose size a matrix's initial values follow; '' = they are zero.
    """

    shape: str
    fan_in: str = ''


@dataclasses.dataclass(frozen=True)
class Cell:
    """A recurrent cell.

    Args:
        name: in configs.
        blocks: how many gates each input product has, which is [B, L, n U] for all positions at once. What reads a gate
            alone is faster where its product is an array of its own.
        states: how many arrays it keeps.
        recurrent: gates of the product of its first state, the first ones; 0 = there is none.
        operands: learned arrays by name: 'input' and 'bias' of the input products, 'recurrent' or 'diagonal' of the
            state's and 'recurrent_bias' beside it, and what else `output` reads.
        step: element-wise, from a position's gates [B, U] each, the recurrent products and the states before to those
            after. The gates are input products, but for the first block where there are `scales`.
        scales: of the gates of the first block, which `step` reads as tanh(scale (input + recurrent product)), all
            computed at once: with 1/2 a sigmoid is (1 + gate) / 2. The recurrent products that it reads are those of
            the other blocks.
        scanned: how many blocks the step reads, the first ones; 0 = all.
        biased: the first and the end of the gates that 'bias' is added to; None = all.
        is_diagonal: whether the recurrent product is element-wise: one number for each unit instead of a matrix.
        output: element-wise over all positions, from the products of all gates, the input [..., D], the states before
            and after each position and the operands to what goes out [..., U]; None = the first state after.
    """

    name: str
    blocks: tuple[int, ...]
    states: int
    recurrent: int
    operands: dict[str, Operand] = dataclasses.field(hash=False)
    step: Callable[[tuple[Array, ...], tuple[Array, ...], States], States]
    scales: tuple[float, ...] = ()
    scanned: int = 0
    biased: tuple[int, int] | None = None
    is_diagonal: bool = False
    output: Callable[[tuple[Array, ...], Array, States, States, dict[str, Array]], Array] | None = None

    @property
    def gates(self) -> int:
        """The number of gates."""
        return sum(self.blocks)

    def parts(self, x: Array, units: int) -> tuple[Array, ...]:
        """The blocks of an array whose last axis has the gates one after another, U each."""
        ends = [units * sum(self.blocks[:count]) for count in range(1, len(self.blocks))]
        return tuple(jnp.split(x, ends, axis=-1))
