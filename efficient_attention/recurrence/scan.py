"""Scans a recurrent cell over positions; in the backward pass, one matrix product computes the gradient of each
recurrent matrix.

JAX's automatic gradient adds an outer product to the recurrent matrix's gradient at every position. So it reads and
writes the full gradient every time. Here the backward scan stores the gradients of all recurrent products. One matrix
product then computes the gradient of the recurrent matrix.

A CPU does not vectorise functions of array slices inside a loop. If a cell's gates come from one product, their tanh is
therefore computed at once and split afterwards; the scan stores these gates instead of their sums. Matrices are
multiplied with rows and positions joined into one axis, unless rows are sharded. A sum over two axes would copy the
operands first.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.device_mesh import is_axis_sharded
from efficient_attention.recurrence.cell_interface import Cell, States

Blocks = tuple[Array, ...]  # one array for each block of gates
Learned = dict[str, Blocks]


class ScanMasks(NamedTuple):
    """The inputs of a recurrent scan that get no gradients: where texts begin, where padding is, and the mask of state
    dropout.

    Args:
        begins_LB: where a text begins, so that the state before is ignored; None = nowhere.
        holds_LB: where the state does not change; None = nowhere.
        state_mask_BU: multiplies the first state where the recurrent product reads it; None = ones.
    """

    begins_LB: Array | None = None
    holds_LB: Array | None = None
    state_mask_BU: Array | None = None

    def states_as_read(self, states: States) -> States:
        """Returns the recurrent states of one position or of all positions, with zeros where a text begins."""
        if self.begins_LB is None:
            return states
        return tuple(jnp.where(self.begins_LB[..., None], 0.0, one) for one in states)

    def apply_state_mask(self, state: Array) -> Array:
        """Returns the state of one or all positions after state dropout; the recurrent product reads the result."""
        if self.state_mask_BU is None:
            return state
        return state * (self.state_mask_BU if state.ndim == 2 else self.state_mask_BU[None])

    def select_held_states(self, held: States, moved: States) -> States:
        """Returns the new recurrent states `moved`; at padding, returns the old states `held`, because padding must not
        change the state.
        """
        if self.holds_LB is None:
            return moved
        holds = self.holds_LB[..., None]
        return tuple(jnp.where(holds, old, new) for old, new in zip(held, moved, strict=True))

    def scanned(self) -> tuple[Array | None, Array | None]:
        """Returns the masks that differ by position, so that the scan slices them."""
        return self.begins_LB, self.holds_LB

    def at_position(self, position: tuple[Array | None, Array | None]) -> 'ScanMasks':
        """Returns the masks for one position of the scan."""
        return ScanMasks(*position, self.state_mask_BU)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def scan_states(cell: Cell, products: Blocks, learned: Learned, start: States, fixed: ScanMasks) -> States:
    """Runs the scan of a recurrent cell; returns its states after each position, float32 [L, B, U] each.

    Args:
        cell: the recurrent cell.
        products: input products of the blocks that the step reads, at all positions, [L, B, n U] each.
        learned: operands by block, if the cell has them: 'bias' [n U] of the input products; 'recurrent' [U, n U], or
            'diagonal' [U] for a diagonal cell; 'recurrent_bias' [n U].
        start: the states before the first position.
        fixed: text starts, padding and state dropout.
    """
    return _forward(cell, products, learned, start, fixed)[0]


def states_before(fixed: ScanMasks, start: States, after: States) -> States:
    """Returns the recurrent states that each position reads, [L, B, U] each, from the states after each position."""
    before = (jnp.concatenate([one[None], later[:-1]]) for one, later in zip(start, after, strict=True))
    return fixed.states_as_read(tuple(before))


class StepGates(NamedTuple):
    """The gates that a recurrent cell's step function receives at one position.

    Args:
        activated: the first block, tanh(scale (input + recurrent product)) [B, n U]; None if the cell has no scales, so
            that the first block is like the others.
        products: input products of the other blocks, with their biases.
        recurrent: recurrent products of the other blocks.
    """

    activated: Array | None
    products: Blocks
    recurrent: Blocks

    def next_states(self, cell: Cell, read: States) -> States:
        """Returns the recurrent states after this position, from the gates and the states that the position reads."""
        first = () if self.activated is None else tuple(jnp.split(self.activated, cell.blocks[0], axis=-1))
        return cell.step((*first, *self.products), self.recurrent, read)


def _forward(cell: Cell, products: Blocks, learned: Learned, start: States, fixed: ScanMasks) -> tuple[States, tuple]:
    def step(states: States, one: tuple) -> tuple[States, tuple[States, tuple[Array | None, Blocks]]]:
        here = fixed.at_position(one[1])
        read = here.states_as_read(states)
        recurrent = _recurrent_products(cell, learned, here.apply_state_mask(read[0]), products[0].dtype)
        gates = _gates(cell, _with_bias(one[0], learned), recurrent, read[0].shape[-1])
        after = here.select_held_states(states, gates.next_states(cell, read))
        return after, (after, (gates.activated, gates.recurrent))

    _, (after, gates) = jax.lax.scan(step, start, (products, fixed.scanned()))
    others = products[1:] if cell.scales else products
    return after, (others, products[0][:0], learned, start, fixed, after, gates)


def _backward(cell: Cell, kept: tuple, gradients: States) -> tuple:
    products, like, learned, start, fixed, after, (activated, recurrent) = kept
    before, dtype, first = states_before(fixed, start, after), like.dtype, len(cell.scales) and 1
    # The recurrent matrices are transposed once here, not at every position.
    turned = jax.lax.optimization_barrier(tuple(kernel.T for kernel in learned.get('recurrent', ())))

    def step(later: States, one: tuple) -> tuple[States, tuple[Blocks, Blocks]]:
        products, activated, recurrent, read, gradient, position = one
        here, total = fixed.at_position(position), tuple(map(jnp.add, later, gradient))
        gates = StepGates(activated, _with_bias(products, learned, first), recurrent)
        _, pull = jax.vjp(lambda gates, read: gates.next_states(cell, read), gates, read)
        of_gates, of_read = pull(here.select_held_states(tuple(map(jnp.zeros_like, total)), total))
        of_sum: Blocks = ()
        if activated is not None:
            of_sum = (of_gates.activated * (1 - activated * activated) * _gate_scales(cell, read[0].shape[-1]),)
        of_products, of_recurrent = (*of_sum, *of_gates.products), (*of_sum, *of_gates.recurrent)
        if of_recurrent:
            of_state = _transposed_products(cell, learned, turned, of_recurrent, dtype)
            of_read = (of_read[0] + here.apply_state_mask(of_state), *of_read[1:])
        return here.select_held_states(total, here.states_as_read(of_read)), (of_products, of_gates.recurrent)

    zeros = tuple(map(jnp.zeros_like, start))
    positions = (products, activated, recurrent, before, gradients, fixed.scanned())
    of_start, (of_products, of_recurrent) = jax.lax.scan(step, zeros, positions, reverse=True)
    of_recurrent = (*of_products[:first], *of_recurrent)
    of_learned = _gradients_of_recurrent(cell, learned, fixed.apply_state_mask(before[0]), of_recurrent, dtype)
    of_learned |= {'bias': tuple(one.sum((0, 1)) for one in of_products)} if 'bias' in learned else {}
    return tuple(one.astype(dtype) for one in of_products), of_learned, of_start, None


scan_states.defvjp(_forward, _backward)


def _with_bias(products: Blocks, learned: Learned, first: int = 0) -> Blocks:
    """Returns the input products of one position plus their biases, float32, for the blocks of gates from number
    `first` on.
    """
    if 'bias' not in learned:
        return tuple(one.astype(jnp.float32) for one in products)
    pairs = zip(products, learned['bias'][first:], strict=True)
    return tuple(one.astype(jnp.float32) + bias[None] for one, bias in pairs)


def _gates(cell: Cell, products: Blocks, recurrent: Blocks, units: int) -> StepGates:
    if not cell.scales:
        return StepGates(None, products, recurrent)
    activated = jnp.tanh((products[0] + recurrent[0]) * _gate_scales(cell, units))
    return StepGates(activated, products[1:], recurrent[1:])


def _gate_scales(cell: Cell, units: int) -> Array:
    """Returns the factors by which the gates of the first block are scaled before tanh, [1, n U]."""
    return jnp.repeat(jnp.asarray(cell.scales, jnp.float32), units)[None]


def _recurrent_products(cell: Cell, learned: Learned, state_BU: Array, dtype: jnp.dtype) -> Blocks:
    """Returns the products of the state with the recurrent matrices, float32; the factors are rounded to `dtype`."""
    if cell.is_diagonal:
        return tuple(state_BU * one[None] for one in learned.get('diagonal', ()))
    products = (
        jnp.matmul(state_BU.astype(dtype), kernel.astype(dtype), preferred_element_type=jnp.float32)
        for kernel in learned['recurrent']
    )
    if 'recurrent_bias' not in learned:
        return tuple(products)
    return tuple(one + bias[None] for one, bias in zip(products, learned['recurrent_bias'], strict=True))


def _transposed_products(cell: Cell, learned: Learned, turned: Blocks, of_recurrent: Blocks, dtype: jnp.dtype) -> Array:
    """Returns the gradient of a cell's state: the gradients of its recurrent products times the transposed matrices
    `turned`.
    """
    if cell.is_diagonal:
        each = [of * one[None] for of, one in zip(of_recurrent, learned['diagonal'], strict=True)]
    else:
        each = [
            jnp.matmul(of.astype(dtype), kernel_GU.astype(dtype), preferred_element_type=jnp.float32)
            for of, kernel_GU in zip(of_recurrent, turned, strict=True)
        ]
    return functools.reduce(jnp.add, each)


def _gradients_of_recurrent(
    cell: Cell, learned: Learned, read_LBU: Array, of_recurrent: Blocks, dtype: jnp.dtype
) -> Learned:
    if cell.is_diagonal:
        return {'diagonal': tuple((read_LBU * of).sum((0, 1)) for of in of_recurrent)} if of_recurrent else {}
    products = (_sum_outer_products(read_LBU.astype(dtype), of.astype(dtype)) for of in of_recurrent)
    pairs = zip(products, learned['recurrent'], strict=True)
    found = {'recurrent': tuple(one.astype(kernel.dtype) for one, kernel in pairs)}
    if 'recurrent_bias' in learned:
        found['recurrent_bias'] = tuple(of.sum((0, 1)) for of in of_recurrent)
    return found


def _sum_outer_products(x_LBU: Array, y_LBG: Array) -> Array:
    """Returns the sum of the outer products of x and y over all positions and batch rows, float32 [U, G].

    The faster form joins the axes of positions and rows. Joining a sharded axis would gather it, so sharded rows use
    an einsum.
    """
    if is_axis_sharded('B'):
        return jnp.einsum('lbu,lbg->ug', x_LBU, y_LBG, preferred_element_type=jnp.float32)
    x_XU, y_XG = jax.lax.collapse(x_LBU, 0, 2), jax.lax.collapse(y_LBG, 0, 2)
    # A matrix product that transposes its operand itself takes a fifth longer on a CPU.
    x_UX = jax.lax.optimization_barrier(x_XU.T)
    return jnp.matmul(x_UX, y_XG, preferred_element_type=jnp.float32)
