"""Tests cells over rows against their equations, position by position, and against nnx's cells, forward and
backward.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.recurrence.cell_interface import Cell
from efficient_attention.recurrence.cells import CELLS, find_cell
from efficient_attention.recurrence.run_cell import LearnedCell, RecurrentState, run_cell, run_cell_on_input_product
from tests.attention.cells import quick
from tests.tolerances import assert_close

B, L, D, U = 3, 11, 6, 4
RNG = np.random.default_rng(0)
X = RNG.standard_normal((B, L, D)).astype(np.float32)
SEGMENTS = np.asarray([[1] * 11, [1] * 4 + [2] * 5 + [0] * 2, [0, 0, 3, 3, 0, 3, 4, 0, 4, 4, 4]], np.int32)
TEXTS = [(1, 1), (1, 2), (2, 3), (2, 4)]  # Pairs of row and segment.
NAMES = [*CELLS, 'sru1 of its own width', 'sru2 of its own width']


def cell_named(name: str) -> tuple[Cell, int]:
    """Returns a cell and its width, which is the input's width where the name says so."""
    units = D if 'width' in name else U
    return find_cell(name.split()[0], D, units), units


def operands_of(cell: Cell, units: int, std: float = 0.6) -> dict[str, np.ndarray]:
    biased = cell.biased or (0, cell.gate_count)
    gates = (cell.recurrent if cell.states and not cell.is_diagonal else cell.gate_count) * units
    sizes = {'D': D, 'U': units, 'g': gates, 'b': (biased[1] - biased[0]) * units}
    if cell.is_diagonal:
        sizes['g'] = cell.gate_count * units
    rng = np.random.default_rng(1)
    return {
        name: rng.normal(0, std, [sizes[letter] for letter in operand.shape]).astype(np.float32)
        for name, operand in cell.operands.items()
    }


def sigma(x: Any) -> Any:
    return 1 / (1 + jnp.exp(-x))


def equations(name: str, p: dict[str, jax.Array], x_D: jax.Array, states: tuple) -> tuple[jax.Array, tuple]:
    """Returns a position's output and the states after it, by the equations of the papers."""
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
    """Returns outputs [B, L, U] of rows that have one text each."""
    states, rows = (jnp.zeros((len(x_BLD), U if 'width' not in name else D)),) * count, []
    for x_BD in x_BLD.swapaxes(0, 1):
        out, states = jax.vmap(lambda x, states: equations(name, p, x, states))(x_BD, states)
        rows.append(out)
    return jnp.stack(rows, axis=1)


def value_and_gradients(make: Any, p: dict, x: jax.Array) -> Any:
    """Returns a weighted sum of the outputs, and its gradients to the operands and the input."""

    def total(p: dict, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = make(p, x)
        return (out * jnp.cos(jnp.arange(out.size)).reshape(out.shape)).sum(), out

    return jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(p, x)


@pytest.mark.parametrize('name', NAMES)
def test_a_cell_is_its_equations_forward_and_backward(name: str):
    """The cell also runs chunk by chunk, and in the other direction."""
    cell, units = cell_named(name)

    @quick
    def all_ways(p: dict, x: jax.Array) -> tuple:
        truth = value_and_gradients(lambda p, x: one_by_one(name, p, x, cell.states), p, x)
        found = [
            value_and_gradients(lambda p, x, chunk=chunk: run_cell(LearnedCell(cell, p), x, chunk=chunk)[0], p, x)
            for chunk in (0, 2)
        ]
        return truth, found, run_cell(LearnedCell(cell, p), x[:, ::-1], is_reversed=True)[0]

    ((_, out), truth), found, back = jax.device_get(all_ways(operands_of(cell, units), X[:, :5]))
    for (_, one), gradients in found:
        assert_close(one, out, within=1e-5)
        assert_close(gradients, truth, gradient=True)
    assert_close(back[:, ::-1], out, within=1e-5)


@pytest.mark.parametrize('name', ['gru', 'lstm', 'sru2'])
def test_a_text_in_a_packed_row_with_padding_is_as_alone(name: str):
    """Outputs and gradients are compared in both directions, wherever the padding is."""
    cell, units = cell_named(name)
    texts = [(row, np.flatnonzero(SEGMENTS[row] == one)) for row, one in TEXTS]

    def packed(p: dict, x: jax.Array, is_reversed: bool) -> jax.Array:
        return run_cell(LearnedCell(cell, p), x, SEGMENTS, is_reversed=is_reversed, chunk=4)[0]

    def packed_texts(p: dict, x: jax.Array, is_reversed: bool) -> jax.Array:
        out = packed(p, x, is_reversed)
        return jnp.concatenate([out[row, places] for row, places in texts])

    def alone(p: dict, x: jax.Array, is_reversed: bool) -> jax.Array:
        rows = [
            run_cell(LearnedCell(cell, p), x[row, places][None], is_reversed=is_reversed)[0][0] for row, places in texts
        ]
        return jnp.concatenate(rows)

    @functools.partial(jax.jit, static_argnums=2)
    def both_ways(p: dict, x: jax.Array, is_reversed: bool) -> tuple:
        ways = (functools.partial(way, is_reversed=is_reversed) for way in (packed_texts, alone))
        return packed(p, x, is_reversed), *(value_and_gradients(way, p, x) for way in ways)

    for is_reversed in (False, True):
        ways = jax.device_get(both_ways(operands_of(cell, units), X, is_reversed))
        whole, ((_, found), gradients), ((_, out), truth) = ways
        assert_close(found, out, within=1e-5)
        assert_close(gradients, truth, gradient=True)
        assert not whole[SEGMENTS == 0].any()


@pytest.mark.parametrize('name', NAMES)
def test_two_halves_with_the_state_between_are_one_pass(name: str):
    cell, units = cell_named(name)

    @quick
    def both_ways(p: dict, x: jax.Array) -> tuple:
        first, state = run_cell(LearnedCell(cell, p), x[:, :5], SEGMENTS[:, :5])
        second, after = run_cell(LearnedCell(cell, p), x[:, 5:], SEGMENTS[:, 5:], state=state)
        return (jnp.concatenate([first, second], axis=1), after), run_cell(LearnedCell(cell, p), x, SEGMENTS)

    assert_close(*both_ways(operands_of(cell, units), X))


def test_padding_leaves_the_state_and_rows_without_segments_are_one_text():
    cell, units = cell_named('lstm')
    learned = LearnedCell(cell, operands_of(cell, units))

    @quick
    def states(x: jax.Array) -> tuple:
        return run_cell(learned, x, SEGMENTS)[1], run_cell(learned, x[1:2, 4:9])[1]

    state, cut = jax.device_get(states(X))
    jax.tree.map(lambda a, b: assert_close(a[1:2], b), state.vectors, cut.vectors)
    np.testing.assert_array_equal(state.segments_B, [1, 2, 4])

    @quick
    def outputs(x: jax.Array) -> tuple:
        start = RecurrentState((jnp.ones((B, units)),) * 2, jnp.asarray([7, 7, 7]))
        return tuple(run_cell(learned, x, state=state)[0] for state in (start, learned.empty_state(B), None))

    went_on, fresh, alone = jax.device_get(outputs(X))
    assert np.abs(went_on - fresh).max() > 0.1
    assert_close(fresh, alone)


NNX = {'tanh': nnx.SimpleCell, 'gru': nnx.GRUCell, 'lstm': nnx.OptimizedLSTMCell}


@pytest.mark.parametrize('name', NNX)
def test_nnx_cells_give_the_same(name: str):
    """In nnx's GRU the product of the state has no bias."""
    cell, units = cell_named(name)
    p = operands_of(cell, units)
    theirs = jax.jit(lambda: NNX[name](D, units, rngs=nnx.Rngs(0)))()
    if 'recurrent_bias' in p:
        p['recurrent_bias'] = np.zeros_like(p['recurrent_bias'])
    input_side, state_side = {
        'tanh': ('dense_i', 'dense_h'), 'gru': ('dense_i', 'dense_h'), 'lstm': ('dense_i', 'dense_h')
    }[name]  # fmt: skip
    getattr(theirs, input_side).kernel[...] = jnp.asarray(p['input'])
    getattr(theirs, state_side).kernel[...] = jnp.asarray(p['recurrent'])
    holder = next(getattr(theirs, side) for side in (input_side, state_side) if getattr(theirs, side).bias is not None)
    holder.bias[...] = jnp.asarray(p['bias'])
    start = jax.tree.map(
        jnp.asarray, (np.zeros((B, units), np.float32),) * 2 if name == 'lstm' else np.zeros((B, units), np.float32)
    )
    graph, params, others = nnx.split(nnx.RNN(theirs, rngs=False), nnx.Param, ...)

    def ours_of(p: dict, x: jax.Array) -> jax.Array:
        return run_cell(LearnedCell(cell, p), x)[0]

    def theirs_of(params: nnx.State, x: jax.Array) -> jax.Array:
        return nnx.merge(graph, params, others)(x, initial_carry=start)

    both_ways = quick(
        lambda p, params, x: (value_and_gradients(ours_of, p, x), value_and_gradients(theirs_of, params, x))
    )
    ((_, out), (own, of_x)), ((_, expected), (params, of_their_x)) = both_ways(p, params, X)
    assert_close(out, expected, within=1e-5)
    assert_close(of_x, of_their_x, gradient=True)
    found = params['cell']
    pairs = (found[input_side].kernel, own['input']), (found[state_side].kernel, own['recurrent'])
    for theirs_one, one in pairs:
        assert_close(one, theirs_one[...], gradient=True)


@pytest.mark.parametrize('name', ['gru', 'sru2'])
def test_bfloat16_inputs_give_bfloat16_and_the_state_stays_float32(name: str):
    cell, units = cell_named(name)

    @quick
    def both_ways(p: dict, x: jax.Array) -> tuple:
        def total(p: dict) -> tuple:
            out, state = run_cell(LearnedCell(cell, p), x.astype(jnp.bfloat16), SEGMENTS)
            return out.astype(jnp.float32).sum(), (out, state)

        return *jax.grad(total, has_aux=True)(p), run_cell(LearnedCell(cell, p), x, SEGMENTS)[0]

    gradients, (out, state), exact = both_ways(operands_of(cell, units), X)
    assert out.dtype == jnp.bfloat16 and {one.dtype for one in state.vectors} == {jnp.dtype('float32')}
    assert_close(out, exact, dtype='bfloat16')
    assert {one.dtype for one in jax.tree.leaves(gradients)} == {jnp.dtype('float32')}


@pytest.mark.parametrize('name', ['gru', 'sru2 of its own width'])
def test_a_product_that_is_there_is_read_in_the_input_s_place(name: str):
    """A given input product replaces the input, including numbers added to the product."""
    cell, units = cell_named(name)

    @quick
    def all_ways(p: dict, x: jax.Array) -> list:
        learned = LearnedCell(cell, p)
        product, state = x @ p['input'], learned.empty_state(B)
        read = [run_cell_on_input_product(learned, product + more, x, SEGMENTS, state=state) for more in (0.0, 0.5)]
        return [(out, state.vectors) for out, state in (*read, run_cell(learned, x, SEGMENTS))]

    found, more, expected = jax.device_get(all_ways(operands_of(cell, units), X))
    assert_close(found, expected)
    assert np.abs(more[0] - found[0]).max() > 1e-2
