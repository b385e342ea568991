"""The scan over positions, and its gradient, of which all that is a sum over positions is one product afterwards.

A gradient by JAX alone adds the outer product of each position to that of the recurrent matrix, one after another, and
so reads and writes this matrix at each position. Here the scan of the backward pass leaves the gradient of the
recurrent product of all positions, [L, B, g U], and one product makes the matrix's gradient of it.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.recurrence.cell import Cell, States

Learned = dict[str, Array]


class Fixed(NamedTuple):
    """What steers the scan and has no gradient.

    Args:
        begins_LB: where the state before is not read, as a text begins; None = nowhere.
        holds_LB: where the state stays as it is; None = nowhere.
        state_mask_BU: multiplies the first state where the recurrent product reads it; None = ones.
    """

    begins_LB: Array | None = None
    holds_LB: Array | None = None
    state_mask_BU: Array | None = None

    def read(self, states: States) -> States:
        """The states as positions read them, for all positions at once or in the scan for one."""
        if self.begins_LB is None:
            return states
        return tuple(jnp.where(self.begins_LB[..., None], 0.0, one) for one in states)

    def masked(self, state: Array) -> Array:
        """A state, or those of all positions, as the recurrent product reads it."""
        if self.state_mask_BU is None:
            return state
        return state * (self.state_mask_BU if state.ndim == 2 else self.state_mask_BU[None])

    def chosen(self, held: States, moved: States) -> States:
        """The first where a state is held, the second elsewhere."""
        if self.holds_LB is None:
            return moved
        holds = self.holds_LB[..., None]
        return tuple(jnp.where(holds, old, new) for old, new in zip(held, moved, strict=True))

    def scanned(self) -> tuple[Array | None, Array | None]:
        """What the scan takes position by position."""
        return self.begins_LB, self.holds_LB

    def at(self, position: tuple[Array | None, Array | None]) -> 'Fixed':
        """For one position of the scan."""
        return Fixed(*position, self.state_mask_BU)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def states_of(cell: Cell, product_LBX: Array, learned: Learned, start: States, fixed: Fixed) -> States:
    """The states after each position, float32 [L, B, U] each.

    Args:
        cell: whose states they are.
        product_LBX: input products of all gates at all positions, X = g U.
        learned: 'bias' of the input product [g U]; 'recurrent' [U, g U], or of a diagonal cell 'diagonal' [g U], and
            'recurrent_bias' [g U]: those that it has.
        start: the states before the first position.
        fixed: where texts begin and padding stands.
    """
    return _forward(cell, product_LBX, learned, start, fixed)[0]


def states_before(fixed: Fixed, start: States, after: States) -> States:
    """The states that each position reads, [L, B, U] each, from those after each."""
    before = (jnp.concatenate([one[None], later[:-1]]) for one, later in zip(start, after, strict=True))
    return fixed.read(tuple(before))


def _forward(cell: Cell, product_LBX: Array, learned: Learned, start: States, fixed: Fixed) -> tuple[States, tuple]:
    bias_1X = learned['bias'][None] if 'bias' in learned else 0.0

    def step(states: States, one: tuple) -> tuple[States, tuple[States, Array | None]]:
        product, here = one[0].astype(jnp.float32) + bias_1X, fixed.at(one[1])
        read = here.read(states)
        again = _recurrent_product(cell, learned, here.masked(read[0]), one[0].dtype)
        kept = again
        if cell.is_sum:
            assert again is not None
            kept = product = product + again
        after = here.chosen(states, cell.step(*_operands(cell, product, again), read))
        return after, (after, kept)

    _, (after, kept_LBX) = jax.lax.scan(step, start, (product_LBX, fixed.scanned()))
    return after, (None if cell.is_sum else product_LBX, product_LBX[:0, :0], learned, start, fixed, after, kept_LBX)


def _backward(cell: Cell, kept: tuple, gradients: States) -> tuple:
    product_LBX, like, learned, start, fixed, after, kept_LBX = kept
    dtype, before = like.dtype, states_before(fixed, start, after)
    bias_1X = learned['bias'][None] if 'bias' in learned else 0.0

    def step(later: States, one: tuple) -> tuple[States, tuple[Array, Array | None]]:
        product, again, read, gradient, position = one
        product, again = (again, None) if cell.is_sum else (product.astype(jnp.float32) + bias_1X, again)
        here, total = fixed.at(position), tuple(map(jnp.add, later, gradient))
        zeros = tuple(map(jnp.zeros_like, total))
        _, pull = jax.vjp(lambda *x: cell.step(*_operands(cell, *x[:2]), x[2]), product, again, read)
        of_product, of_again, of_read = pull(here.chosen(zeros, total))
        of_state = _transposed_product(cell, learned, of_product if cell.is_sum else of_again, dtype)
        if of_state is not None:
            of_read = (of_read[0] + here.masked(of_state), *of_read[1:])
        return here.chosen(total, here.read(of_read)), (of_product, of_again)

    zeros = tuple(map(jnp.zeros_like, start))
    positions = (product_LBX, kept_LBX, before, gradients, fixed.scanned())
    of_start, (of_product, of_again) = jax.lax.scan(step, zeros, positions, reverse=True)
    of_again = of_product if cell.is_sum else of_again
    of_learned = _gradients_of_recurrent(cell, learned, fixed.masked(before[0]), of_again, dtype)
    of_learned |= {'bias': of_product.sum((0, 1))} if 'bias' in learned else {}
    return of_product.astype(dtype), of_learned, of_start, None


states_of.defvjp(_forward, _backward)


def _operands(cell: Cell, product: Array, again: Array | None) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """The first two arguments of a cell's step."""
    again = None if cell.is_sum else again
    return _gates(product, cell.gates), () if again is None else _gates(again, cell.recurrent)


def _gates(x: Array, count: int) -> tuple[Array, ...]:
    """The arrays of the gates that stand one after another."""
    return tuple(jnp.split(x, count, axis=-1))


def _recurrent_product(cell: Cell, learned: Learned, state_BU: Array, dtype: jnp.dtype) -> Array | None:
    """float32; products of matrices are of numbers in `dtype`."""
    if not cell.recurrent:
        return None
    if cell.is_diagonal:
        return jnp.tile(state_BU, cell.recurrent) * learned['diagonal'][None]
    kernel = learned['recurrent'].astype(dtype)
    product = jnp.matmul(state_BU.astype(dtype), kernel, preferred_element_type=jnp.float32)
    return product + learned['recurrent_bias'][None] if 'recurrent_bias' in learned else product


def _transposed_product(cell: Cell, learned: Learned, of_again: Array | None, dtype: jnp.dtype) -> Array | None:
    if of_again is None:
        return None
    if cell.is_diagonal:
        return jnp.stack(_gates(of_again * learned['diagonal'][None], cell.recurrent)).sum(axis=0)
    kernel = learned['recurrent'].T.astype(dtype)
    return jnp.matmul(of_again.astype(dtype), kernel, preferred_element_type=jnp.float32)


def _gradients_of_recurrent(
    cell: Cell, learned: Learned, read_LBU: Array, of_again_LBX: Array | None, dtype: jnp.dtype
) -> Learned:
    if of_again_LBX is None:
        return {}
    if cell.is_diagonal:
        return {'diagonal': (jnp.tile(read_LBU, cell.recurrent) * of_again_LBX).sum((0, 1))}
    read_LBU, of_again = read_LBU.astype(dtype), of_again_LBX.astype(dtype)
    product = jnp.einsum('lbu,lbx->ux', read_LBU, of_again, preferred_element_type=jnp.float32)
    found = {'recurrent': product.astype(learned['recurrent'].dtype)}
    if 'recurrent_bias' in learned:
        found['recurrent_bias'] = of_again_LBX.sum((0, 1))
    return found
