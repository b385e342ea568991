"""The plain recurrent cell: h = tanh(W x + b + U h + b') (Elman 1990)."""

import jax.numpy as jnp
from jax import Array

from efficient_attention.recurrence.cell import Cell, Operand, States


def step(product: tuple[Array, ...], recurrent: tuple[Array, ...], states: States) -> States:
    """The state after a position."""
    del recurrent, states
    return (jnp.tanh(product[0]),)


OPERANDS = {'input': Operand('Dg', 'U'), 'bias': Operand('g'), 'recurrent': Operand('Ug', 'U')}
CELL = Cell('tanh', gates=1, states=1, recurrent=1, operands=OPERANDS, step=step, is_sum=True)
