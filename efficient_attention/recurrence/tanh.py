"""The plain recurrent cell: h = tanh(W x + b + U h + b') (Elman 1990)."""

from jax import Array

from efficient_attention.recurrence.cell import Cell, Operand, States


def step(gates: tuple[Array, ...], recurrent: tuple[Array, ...], states: States) -> States:
    """The state after a position."""
    del recurrent, states
    return gates


OPERANDS = {'input': Operand('Dg', 'U'), 'bias': Operand('g'), 'recurrent': Operand('Ug', 'U')}
CELL = Cell('tanh', (1,), states=1, recurrent=1, operands=OPERANDS, step=step, scales=(1.0,))
