"""Cells over rows equal their equations, one position after another, and nnx's cells; forward and backward."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.recurrence.cell import Cell
from efficient_attention.recurrence.cells import CELLS, cell_of
from efficient_attention.recurrence.recur import LearnedCell, State, recur, recur_from_product
from tests.attention.cells import quick
from tests.tolerances import assert_close

B, L, D, U = 3, 11, 6, 4
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.standard_normal((B, L, D)), jnp.float32)
SEGMENTS = jnp.asarray([[1] * 11, [1] * 4 + [2] * 5 + [0] * 2, [0, 0, 3, 3, 0, 3, 4, 0, 4, 4, 4]])
TEXTS = [(0, 1), (1, 1), (1, 2), (2, 3), (2, 4)]  # row, segment
NAMES = [*CELLS, 'sru1 of its own width', 'sru2 of its own width']


def cell_named(name: str) -> tuple[Cell, int]:
    """A cell and its width, which is the input's where the name says so."""
    units = D if 'width' in name else U
    return cell_of(name.split()[0], D, units), units


def operands_of(cell: Cell, units: int, std: float = 0.6) -> dict[str, jax.Array]:
    biased = cell.biased or (0, cell.gates)
    gates = (cell.recurrent if cell.states and not cell.is_diagonal else cell.gates) * units
    sizes = {'D': D, 'U': units, 'g': gates, 'b': (biased[1] - biased[0]) * units}
    if cell.is_diagonal:
        sizes['g'] = cell.gates * units
    rng = np.random.default_rng(1)
    return {
        name: jnp.asarray(rng.normal(0, std, [sizes[letter] for letter in operand.shape]), jnp.float32)
        for name, operand in cell.operands.items()
    }


def sigma(x: Any) -> Any:
    return 1 / (1 + jnp.exp(-x))


def equations(name: str, p: dict[str, jax.Array], x_D: jax.Array, states: tuple) -> tuple[jax.Array, tuple]:
    """What goes out at a position, and the states after it: the equations as the papers write them."""
    w = jnp.split(p['input'], p['input'].shape[1] // len(states[0]), axis=1)
    h = states[0]
    if name == 'tanh':
        h = jnp.tanh(x_D @ p['input'] + p['bias'] + h @ p['recurrent'])
        return h, (h,)
    if name.startswith('sru'):
        b_f, b_r = jnp.split(p['bias'], 2)
        v_f, v_r = (p['diagonal'], p['reset']) if 'sru2' in name else (0.0, 0.0)
        f, r = sigma(x_D @ w[1] + v_f * h + b_f), sigma(x_D @ w[2] + v_r * h + b_r)
        c = f * h + (1 - f) * (x_D @ w[0])
        return r * c + (1 - r) * 3**0.5 * (x_D @ w[3] if len(w) == 4 else x_D), (c,)
    b, u = (jnp.split(p[one], len(w), axis=-1) for one in ('bias', 'recurrent'))
    if name == 'gru':
        b2 = jnp.split(p['recurrent_bias'], 3)
        r, z = (sigma(x_D @ w[k] + b[k] + h @ u[k] + b2[k]) for k in (0, 1))
        n = jnp.tanh(x_D @ w[2] + b[2] + r * (h @ u[2] + b2[2]))
        h = (1 - z) * n + z * h
        return h, (h,)
    i, f, g, o = (x_D @ w[k] + b[k] + h @ u[k] for k in range(4))
    c = sigma(f) * states[1] + sigma(i) * jnp.tanh(g)
    h = sigma(o) * jnp.tanh(c)
    return h, (h, c)


def one_by_one(name: str, p: dict[str, jax.Array], x_BLD: jax.Array, count: int) -> jax.Array:
    """Outputs [B, L, U] of rows that are a text each."""
    states, rows = (jnp.zeros((len(x_BLD), U if 'width' not in name else D)),) * count, []
    for x_BD in x_BLD.swapaxes(0, 1):
        out, states = jax.vmap(lambda x, states: equations(name, p, x, states))(x_BD, states)
        rows.append(out)
    return jnp.stack(rows, axis=1)


def value_and_gradients(make: Any, p: dict, x: jax.Array) -> Any:
    """Of a sum of the outputs with weights, by the operands and the input."""

    def total(p: dict, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = make(p, x)
        return (out * jnp.cos(jnp.arange(out.size)).reshape(out.shape)).sum(), out

    return quick(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))(p, x)


@pytest.mark.parametrize('name', NAMES)
def test_a_cell_is_its_equations_forward_and_backward(name: str):
    """Also chunk by chunk, and in the other direction."""
    cell, units = cell_named(name)
    p = operands_of(cell, units)
    (_, out), truth = value_and_gradients(lambda p, x: one_by_one(name, p, x, cell.states), p, X[:, :5])
    for chunk in (0, 2):
        (_, found), gradients = value_and_gradients(
            lambda p, x, chunk=chunk: recur(LearnedCell(cell, p), x, chunk=chunk)[0], p, X[:, :5]
        )
        assert_close(found, out, within=1e-5)
        assert_close(gradients, truth, gradient=True)
    back = recur(LearnedCell(cell, p), X[:, 4::-1], is_reversed=True)[0]
    assert_close(back[:, ::-1], out, within=1e-5)


@pytest.mark.parametrize('name', ['gru', 'lstm', 'sru2'])
def test_a_text_in_a_packed_row_with_padding_is_as_alone(name: str):
    """Forward and backward, in both directions, wherever the padding stands."""
    cell, units = cell_named(name)
    p = operands_of(cell, units)
    texts = [(row, np.flatnonzero(np.asarray(SEGMENTS[row]) == one)) for row, one in TEXTS]
    for is_reversed in (False, True):

        def packed(p: dict, x: jax.Array, is_reversed: bool = is_reversed) -> jax.Array:
            out = recur(LearnedCell(cell, p), x, SEGMENTS, is_reversed=is_reversed, chunk=4)[0]
            return jnp.concatenate([out[row, places] for row, places in texts])

        def alone(p: dict, x: jax.Array, is_reversed: bool = is_reversed) -> jax.Array:
            rows = [
                recur(LearnedCell(cell, p), x[row, places][None], is_reversed=is_reversed)[0][0]
                for row, places in texts
            ]
            return jnp.concatenate(rows)

        (_, found), gradients = value_and_gradients(packed, p, X)
        (_, out), truth = value_and_gradients(alone, p, X)
        assert_close(found, out, within=1e-5)
        assert_close(gradients, truth, gradient=True)
    assert not jnp.where(SEGMENTS[..., None] == 0, recur(LearnedCell(cell, p), X, SEGMENTS)[0], 0.0).any()


@pytest.mark.parametrize('name', NAMES)
def test_two_halves_with_the_state_between_are_one_pass(name: str):
    cell, units = cell_named(name)
    p = operands_of(cell, units)
    whole, last = recur(LearnedCell(cell, p), X, SEGMENTS)
    for middle in (5,):
        first, state = recur(LearnedCell(cell, p), X[:, :middle], SEGMENTS[:, :middle])
        second, after = recur(LearnedCell(cell, p), X[:, middle:], SEGMENTS[:, middle:], state=state)
        assert_close(jnp.concatenate([first, second], axis=1), whole)
        jax.tree.map(assert_close, after, last)


def test_padding_leaves_the_state_and_rows_without_segments_are_one_text():
    cell, units = cell_named('lstm')
    p = operands_of(cell, units)
    _, state = recur(LearnedCell(cell, p), X, SEGMENTS)
    _, cut = recur(LearnedCell(cell, p), X[1:2, 4:9])
    jax.tree.map(lambda a, b: assert_close(a[1:2], b), state.vectors, cut.vectors)
    np.testing.assert_array_equal(state.segments_B, [1, 2, 4])
    start = State((jnp.ones((B, units)),) * 2, jnp.asarray([7, 7, 7]))
    went_on, fresh = (
        recur(LearnedCell(cell, p), X, state=start)[0],
        recur(LearnedCell(cell, p), X, state=LearnedCell(cell, p).empty_state(B))[0],
    )
    assert jnp.abs(went_on - fresh).max() > 0.1
    assert_close(fresh, recur(LearnedCell(cell, p), X)[0])


NNX = {'tanh': nnx.SimpleCell, 'gru': nnx.GRUCell, 'lstm': nnx.OptimizedLSTMCell}


@pytest.mark.parametrize('name', NNX)
def test_nnx_cells_give_the_same(name: str):
    """Of nnx's GRU the state's product has no bias."""
    cell, units = cell_named(name)
    p = operands_of(cell, units)
    theirs = NNX[name](D, units, rngs=nnx.Rngs(0))
    if 'recurrent_bias' in p:
        p['recurrent_bias'] = jnp.zeros_like(p['recurrent_bias'])
    input_side, state_side = {
        'tanh': ('dense_i', 'dense_h'), 'gru': ('dense_i', 'dense_h'), 'lstm': ('dense_i', 'dense_h')
    }[name]  # fmt: skip
    getattr(theirs, input_side).kernel[...] = p['input']
    getattr(theirs, state_side).kernel[...] = p['recurrent']
    holder = next(getattr(theirs, side) for side in (input_side, state_side) if getattr(theirs, side).bias is not None)
    holder.bias[...] = p['bias']
    start = theirs.initialize_carry((B, units), nnx.Rngs(0))
    graph, params, others = nnx.split(nnx.RNN(theirs, rngs=False), nnx.Param, ...)
    weights = jnp.asarray(RNG.standard_normal((B, L, units)), jnp.float32)

    def ours_of(p: dict, x: jax.Array) -> jax.Array:
        return recur(LearnedCell(cell, p), x)[0]

    def theirs_of(params: nnx.State, x: jax.Array) -> jax.Array:
        return nnx.merge(graph, params, others)(x, initial_carry=start)

    assert_close(ours_of(p, X), theirs_of(params, X), within=1e-5)
    own, of_x = jax.grad(lambda p, x: (ours_of(p, x) * weights).sum(), argnums=(0, 1))(p, X)
    params, of_their_x = jax.grad(lambda p, x: (theirs_of(p, x) * weights).sum(), argnums=(0, 1))(params, X)
    assert_close(of_x, of_their_x, gradient=True)
    found = params['cell']
    pairs = (found[input_side].kernel, own['input']), (found[state_side].kernel, own['recurrent'])
    for theirs_one, one in pairs:
        assert_close(one, theirs_one[...], gradient=True)


@pytest.mark.parametrize('name', ['gru', 'sru2'])
def test_bfloat16_inputs_give_bfloat16_and_the_state_stays_float32(name: str):
    cell, units = cell_named(name)
    p = operands_of(cell, units)
    out, state = recur(LearnedCell(cell, p), X.astype(jnp.bfloat16), SEGMENTS)
    assert out.dtype == jnp.bfloat16 and {one.dtype for one in state.vectors} == {jnp.dtype('float32')}
    assert_close(out, recur(LearnedCell(cell, p), X, SEGMENTS)[0], dtype='bfloat16')

    def loss(p: dict) -> jax.Array:
        return recur(LearnedCell(cell, p), X.astype(jnp.bfloat16), SEGMENTS)[0].astype(jnp.float32).sum()

    assert {one.dtype for one in jax.tree.leaves(jax.grad(loss)(p))} == {jnp.dtype('float32')}


@pytest.mark.parametrize('name', ['gru', 'sru2 of its own width'])
def test_a_product_that_is_there_is_read_in_the_input_s_place(name: str):
    """And so what is added to it, too."""
    cell, units = cell_named(name)
    learned = LearnedCell(cell, operands_of(cell, units))
    product = X @ learned.operands['input']
    found, state = recur_from_product(learned, product, X, SEGMENTS, state=learned.empty_state(B))
    expected, expected_state = recur(learned, X, SEGMENTS)
    assert_close((found, state.vectors), (expected, expected_state.vectors))
    more = recur_from_product(learned, product + 0.5, X, SEGMENTS, state=learned.empty_state(B))[0]
    assert jnp.abs(more - found).max() > 1e-2
