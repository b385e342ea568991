"""What a recurrent cell promises, so that one scan serves them all.

g counts the gates of a cell, each U wide.
"""

import dataclasses
from collections.abc import Callable

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
        gates: of the input product, which is [B, L, gates U] for all positions at once.
        states: how many arrays it keeps.
        recurrent: gates of the product of its first state, the first ones of `gates`; 0 = there is none.
        biased: the first and the end of the gates that 'bias' is added to; None = all.
        is_diagonal: whether that product is element-wise: one number for each gate and unit instead of a matrix.
        operands: learned arrays by name: 'input' and 'bias' of the input product, 'recurrent' or 'diagonal' of the
            state's and 'recurrent_bias' beside it, and what else `output` reads.
        step: element-wise, from a position's input product (as many arrays [B, U] as gates), its recurrent product
            (likewise) and the states before to those after.
        is_sum: whether the step reads no product but the sum of both, which then comes first, and () behind it.
        output: element-wise over all positions, from the input products, the input [..., D], the states before and
            after each position and the operands to what goes out [..., U]; None = the first state after.
    """

    name: str
    gates: int
    states: int
    recurrent: int
    operands: dict[str, Operand] = dataclasses.field(hash=False)
    step: Callable[[tuple[Array, ...], tuple[Array, ...], States], States]
    biased: tuple[int, int] | None = None
    is_sum: bool = False
    is_diagonal: bool = False
    output: Callable[[tuple[Array, ...], Array, States, States, dict[str, Array]], Array] | None = None
