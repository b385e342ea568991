"""The gated recurrent unit in the form of torch and cuDNN: the reset gate multiplies the recurrent product.

r, z = sigma(W x + b + U h + b'), n = tanh(W x + b + r (U h + b')); h = (1 - z) n + z h'. Gates stand in the order r, z,
n. With b' = 0 it is nnx's `GRUCell`. In the first one (Cho et al. 2014, arXiv 1406.1078, equation 8) the reset gate
multiplies the state before its product: n = tanh(W x + U (r h)).
"""

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.recurrence.cell import Cell, Operand, States


def step(product: tuple[Array, ...], recurrent: tuple[Array, ...], states: States) -> States:
    """The state after a position."""
    r, z = (jax.nn.sigmoid(product[gate] + recurrent[gate]) for gate in (0, 1))
    n = jnp.tanh(product[2] + r * recurrent[2])
    return ((1 - z) * n + z * states[0],)


OPERANDS = {'input': Operand('Dg', 'U'), 'bias': Operand('g'), 'recurrent': Operand('Ug', 'U')}
OPERANDS |= {'recurrent_bias': Operand('g')}
CELL = Cell('gru', gates=3, states=1, recurrent=3, operands=OPERANDS, step=step)
