"""Long short-term memory (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000).

i, f, o = sigma(W x + b + U h), g = tanh(W x + b + U h); c = f c' + i g; h = o tanh(c). Gates stand in the order i, f,
g, o, as in torch and in nnx's `OptimizedLSTMCell`; torch's two biases add up to this one.
"""

import jax.numpy as jnp
from jax import Array

from efficient_attention.recurrence.cell import Cell, Operand, States


def step(gates: tuple[Array, ...], recurrent: tuple[Array, ...], states: States) -> States:
    """h and c after a position."""
    del recurrent
    i, f, g, o = gates
    c = (0.5 + 0.5 * f) * states[1] + (0.5 + 0.5 * i) * g
    return (0.5 + 0.5 * o) * jnp.tanh(c), c


OPERANDS = {'input': Operand('Dg', 'U'), 'bias': Operand('g'), 'recurrent': Operand('Ug', 'U')}
CELL = Cell('lstm', (4,), states=2, recurrent=4, operands=OPERANDS, step=step, scales=(0.5, 0.5, 1.0, 0.5))
