"""Long short-term memory (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000).

i, f, o = sigma(W x + b + U h), g = tanh(W x + b + U h); c = f c' + i g; h = o tanh(c). Gates stand in the order i, f,
g, o, as in torch and in nnx's `OptimizedLSTMCell`; torch's two biases add up to this one.
"""

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.recurrence.cell import Cell, Operand, States


def step(product: tuple[Array, ...], recurrent: tuple[Array, ...], states: States) -> States:
    """h and c after a position."""
    del recurrent
    i, f, g, o = product
    c = jax.nn.sigmoid(f) * states[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


OPERANDS = {'input': Operand('Dg', 'U'), 'bias': Operand('g'), 'recurrent': Operand('Ug', 'U')}
CELL = Cell('lstm', gates=4, states=2, recurrent=4, operands=OPERANDS, step=step, is_sum=True)
