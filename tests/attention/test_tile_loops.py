"""Loops over tiles: rows come back in order, results do not depend on how they are cut into chunks."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention import blocked, tile_loops, tile_picks
from efficient_attention.attention.attend import attend
from efficient_attention.attention.mechanisms import Softmax
from efficient_attention.attention.schedule import RowClass
from efficient_attention.attention.text_form import parse_pattern
from efficient_attention.attention.tile_loops import (
    Loop,
    into_order,
    lead,
    run_class,
    run_loop,
    sum_to,
    unlead,
    with_empty_tile,
)
from efficient_attention.attention.tile_picks import Pick
from tests.tolerances import assert_close

S = 16


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (blocked, tile_loops, tile_picks):
        monkeypatch.setattr(module, 'TILE', S)


def make_class(rows: list[int], lists: list[list[int]] | None = None) -> RowClass:
    if lists is None:
        return RowClass(np.array(rows), np.array([[[0, 1]]]), True, False)
    return RowClass(np.array(rows), np.array([lists]), False, True)


def own_and_lists(pick: Pick, _: RowClass, total: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    """Counts rows that are no repeats; returns each row's number and the sum of its list."""
    sums = jnp.full(pick.rows.shape, pick.lists.sum()) if pick.is_shared else pick.lists[0].sum(-1)
    return total + (~pick.is_repeat).sum(), [pick.rows, sums]


@pytest.mark.parametrize('rows', [1, 2, 3, 5])
@pytest.mark.parametrize('is_shared', [False, True])
def test_a_class_runs_in_chunks_and_drops_repeats(rows: int, is_shared: bool):
    numbers, lists = [4, 1, 7, 2, 0], [[1, 2], [3, 4], [5, 6], [7, 8], [9, 0]]
    own = make_class(numbers, None if is_shared else lists)
    total, (found, sums) = run_class(own, rows, own_and_lists, jnp.asarray(0))
    assert total == 5
    np.testing.assert_array_equal(found, numbers)
    np.testing.assert_array_equal(sums, [1] * 5 if is_shared else np.sum(lists, 1))


def test_a_loop_returns_all_tiles_in_order_and_fills_the_rest():
    classes = make_class([5, 2], [[1, 1], [2, 2]]), make_class([0, 3, 4])
    loop = Loop(classes, 7, pair_bytes=8, chunk_bytes=16)
    total, (found, sums) = run_loop(loop, own_and_lists, jnp.asarray(10), (-1.0, -2.0))
    assert total == 15
    np.testing.assert_array_equal(found, [0, -1, 2, 3, 4, 5, -1])
    np.testing.assert_array_equal(sums, [1, -2, 4, 1, 1, 2, -2])


def test_chunks_fit_their_bytes_and_are_even():
    own = make_class(list(range(10)), [[0, 1]] * 10)
    sizes = {
        room: Loop((own,), 10, pair_bytes=4, chunk_bytes=room).rows_of_chunk(own) for room in (1, 8, 24, 48, 10**9)
    }
    assert sizes == {1: 1, 8: 1, 24: 3, 48: 5, 10**9: 10}  # 4 chunks of 3 hold 10 rows better than 3, 3, 3, 1


def test_rows_that_are_in_order_already_are_not_moved():
    x = jnp.arange(3)
    assert into_order([x], np.arange(3), 3, 0.0) is x


@pytest.mark.parametrize('is_shared', [False, True])
def test_lead_and_unlead_move_the_tiles_to_the_front_and_back(is_shared: bool):
    x = jnp.arange(2 * 3 * 4 * 5 * 2).reshape(2, 3, 4, 5, 2)
    pick = Pick(jnp.arange(4), np.arange(1) if is_shared else jnp.zeros((1, 4, 1), int), jnp.zeros(4, bool))
    moved = lead(x.reshape(2, 3, 1, 20, 2) if is_shared else x, pick, 2)
    np.testing.assert_array_equal(moved, np.moveaxis(np.asarray(x), 2, 0))
    np.testing.assert_array_equal(unlead(moved, 2), x)


def test_small_helpers():
    x = jnp.ones((2, 3, 4))
    assert sum_to(x, (2, 1, 1)).tolist() == [[[12.0]], [[12.0]]]
    padded = with_empty_tile(x, 1)
    assert padded.shape == (2, 4, 4) and not padded[:, 3].any() and (padded[:, :3] == 1).all()


# ---- whole passes ----


def gradients_and_outputs(text: str, bias: object, **options: object) -> tuple:
    """Outputs, log-sum-exps and gradients of q, k, v and the bias at 60 positions, on the blocked backend."""
    q, k, v = (jax.random.normal(rng, (1, 60, 2, 8)) for rng in jax.random.split(jax.random.key(0), 3))

    def loss(q: jax.Array, k: jax.Array, v: jax.Array, bias: object) -> tuple:
        pattern = Softmax(parse_pattern(text))
        out, lse = attend(q, k, v, pattern, backend='blocked', bias=bias, return_lse=True, **options)
        return (out * jnp.cos(jnp.arange(out.size).reshape(out.shape))).sum() + jnp.sin(lse).sum(), (out, lse)

    quickly = {'xla_backend_optimization_level': 0}  # compiles in half the time
    return jax.jit(jax.grad(loss, (0, 1, 2, 3), has_aux=True), compiler_options=quickly)(q, k, v, bias)


def slopes(scale: jax.Array, query: jax.Array, key: jax.Array) -> jax.Array:
    return -scale[None, :, None, None] * abs(query - key).astype(jnp.float32)


@pytest.mark.parametrize(
    'text, bias',
    [
        ('causal', jax.random.normal(jax.random.key(7), (1, 2, 60, 60))),
        ('longformer(5, 2)', jax.tree_util.Partial(slopes, jnp.asarray([0.1, 0.3]))),
        ('causal & bigbird(16, 1)', jax.random.normal(jax.random.key(8), (1, 1, 1, 60))),
    ],
    ids=['array', 'function', 'keys alone'],
)
def test_results_do_not_depend_on_the_size_of_chunks(text: str, bias: object, monkeypatch: pytest.MonkeyPatch):
    """One row of tiles at a time or all at once: the same numbers, dropout bits and gradients, of the bias too."""
    results = []
    for room in (1, 2**30):
        monkeypatch.setattr(tile_loops, 'CHUNK_BYTES', {'cpu': room})
        results.append(gradients_and_outputs(text, bias, dropout_rate=0.2, rng=jax.random.key(1)))
    assert_close(*results, gradient=True)


@pytest.mark.parametrize('text', ['longformer(5, 2)', 'block(16)'])
def test_a_bias_that_grows_away_from_its_queries_does_not_overflow(text: str):
    """Rows of lists are filled up with queries that do not exist; whatever their bias is, they weigh nothing."""
    bias = jax.tree_util.Partial(lambda scale, query, key: scale * (key - query).astype(jnp.float32), jnp.asarray(5.0))
    for x in jax.tree.leaves(gradients_and_outputs(text, bias)):
        assert jnp.isfinite(x).all()


def test_the_same_call_gives_the_same_bits():
    first, second = (gradients_and_outputs('sparse_strided(8)', None) for _ in range(2))
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize('text', ['bigbird(16, 1)', 'sparse_strided(8)', 'per_head(causal, strided(4))'])
def test_nothing_is_summed_by_scattering(text: str):
    """No scatter meets a place twice, so that a result does not depend on an order; with grouped heads neither."""
    q, k, pattern = jnp.ones((1, 60, 4, 8)), jnp.ones((1, 60, 2, 8)), Softmax(parse_pattern(text))
    loss = jax.grad(lambda q, k, v: attend(q, k, v, pattern, backend='blocked').sum(), (0, 1, 2))
    program = str(jax.make_jaxpr(loss)(q, k, k))
    unique = re.findall(r'scatter[\w-]*\[.*?unique_indices=(\w+)', program, re.DOTALL)
    assert set(unique) <= {'True'} and len(unique) == (6 if text.startswith('per_head') else 0)
