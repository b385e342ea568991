"""The gated recurrent unit in the form of torch and cuDNN: the reset gate multiplies the recurrent product.

r, z = sigma(W x + b + U h + b'), n = tanh(W x + b + r (U h + b')); h = (1 - z) n + z h'. Gates stand in the order r, z,
n. With b' = 0 it is nnx's `GRUCell`. In the first one (Cho et al. 2014, arXiv 1406.1078, equation 8) the reset gate
multiplies the state before its product: n = tanh(W x + U (r h)).
"""

import jax.numpy as jnp
from jax import Array

from efficient_attention.recurrence.cell import Cell, Operand, States


def step(gates: tuple[Array, ...], recurrent: tuple[Array, ...], states: States) -> States:
    """The state after a position."""
    # Of arrays of their own: of one product's halves they took eight times as long, and the product's gain was less.
    r, z = (jnp.tanh(0.5 * (g + u)) for g, u in zip(gates[:2], recurrent[:2], strict=True))
    n = jnp.tanh(gates[2] + (0.5 + 0.5 * r) * recurrent[2])
    return (n + (0.5 + 0.5 * z) * (states[0] - n),)


OPERANDS = {'input': Operand('Dg', 'U'), 'bias': Operand('g'), 'recurrent': Operand('Ug', 'U')}
OPERANDS |= {'recurrent_bias': Operand('g')}
CELL = Cell('gru', (1, 1, 1), states=1, recurrent=3, operands=OPERANDS, step=step)
