"""Tests that LSH attention in chunks equals its dense definition with every option, and that its memory is linear."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import efficient_attention as ea
from efficient_attention.attention.dense_attention import apply_weight_dropout
from efficient_attention.attention.logits.definition import attend_dense
from efficient_attention.attention.lsh import definition as lsh_definition
from efficient_attention.attention.lsh import fast_attention as lsh
from efficient_attention.attention.lsh.definition import LSH
from efficient_attention.attention.lsh.sorted_rounds import make_rounds
from efficient_attention.attention.request import Request
from efficient_attention.attention.softmax.definition import Softmax
from tests.attention.requests import make_request
from tests.tolerances import assert_close

RNG = jax.random.key(3)
SMALL = functools.partial(LSH, bucket_size=8, rounds=3)
# These programs run once: compiling them with all optimisations takes three times as long.
jit = functools.partial(jax.jit, compiler_options={'xla_backend_optimization_level': 0})


def vectors(length: int, *, batch: int = 2, heads: int = 2, width: int = 8, dtype: Any = jnp.float32) -> tuple:
    """Returns values, and queries of norm about 4, so that weights are neither equal nor all on one key."""
    q, v = np.random.default_rng(length).normal(size=(2, batch, length, heads, width)).astype(np.float32)
    return (1.5 * q).astype(dtype), v.astype(dtype)


def request(q: jax.Array, v: jax.Array, mechanism: LSH, **options: Any) -> Request:
    """Returns a request in which queries are also the keys, with the random key of this file."""
    return make_request(q, q, v, mechanism, **({'rng': RNG} | options))


def serve(q: jax.Array, v: jax.Array, mechanism: LSH, **options: Any) -> tuple[jax.Array, jax.Array]:
    """Returns output and log-sum-exp of LSH attention in chunks."""
    return lsh.compute_attention(request(q, v, mechanism, **options))


serve_quickly = functools.partial(jit, static_argnums=2)(serve)


def places(shape: tuple[int, ...]) -> np.ndarray:
    return np.sin(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape)


def by_definition(q: np.ndarray, v: np.ndarray, defined: tuple) -> tuple[np.ndarray, tuple]:
    """Returns the output of the definition's weights, and the gradients of the same loss, written out in float64."""
    q, v, weights, lse, scales = (np.asarray(x, np.float64) for x in (q, v, *defined))
    by_place, diagonal = places(q.shape), np.eye(q.shape[1], dtype=bool)
    # The constant in rows that are empty or read only themselves would be far larger than all other terms.
    of_lse = np.where(lse > lsh_definition.SELF_LOGIT / 2, by_place[..., 0].swapaxes(1, 2), 0.0)
    of_weights = scales * np.einsum('BLHK,BMHK->BHLM', by_place, v)
    of_logits = weights * (of_weights - (weights * of_weights).sum(-1, keepdims=True) + of_lse[..., None])
    of_logits = np.where(diagonal, 0.0, of_logits)
    norms = np.sqrt((q**2).sum(-1, keepdims=True))
    unit, of_unit = q / norms, np.einsum('BHLM,BLHK->BMHK', of_logits, q)
    of_q = np.einsum('BHLM,BMHK->BLHK', of_logits, unit)
    of_q += (of_unit - unit * (unit * of_unit).sum(-1, keepdims=True)) / norms
    of_v = np.einsum('BHLM,BLHK->BMHK', weights * scales, by_place)
    return np.einsum('BHLM,BMHK->BLHK', weights * scales, v), (of_q, of_v)


def both(q: np.ndarray, v: np.ndarray, mechanism: LSH, **options: Any) -> tuple:
    """Returns (output, log-sum-exp, gradients) of attention in chunks, and the same of the definition."""

    def loss(q: jax.Array, v: jax.Array) -> tuple:
        out, lse = serve(q, v, mechanism, **options)
        by_place = places(out.shape)
        readable = jnp.where(lse > lsh_definition.SELF_LOGIT / 2, lse, 0.0)
        of_lse = (readable * by_place[..., 0].swapaxes(1, 2)).sum()
        return (out.astype(jnp.float32) * by_place).sum() + of_lse, (out, lse)

    @jit
    def run(q: jax.Array, v: jax.Array) -> tuple:
        asked = request(q, v, mechanism, **options)
        weights, lse = lsh_definition.weights(asked)
        return *jax.grad(loss, (0, 1), has_aux=True)(q, v), (
            weights,
            lse,
            apply_weight_dropout(jnp.ones_like(weights), asked),
        )

    gradients, outs, defined = jax.device_get(run(q, v))
    expected, expected_gradients = by_definition(q, v, defined)
    return (*outs, gradients), (expected, defined[1], expected_gradients)


def check(q: np.ndarray, v: np.ndarray, mechanism: LSH, **options: Any) -> None:
    """Checks that attention in chunks and the definition agree within the tolerance."""
    (out, lse, gradients), (expected, expected_lse, expected_gradients) = both(q, v, mechanism, **options)
    assert lse.dtype == jnp.float32 and out.dtype == q.dtype
    assert_close((out, lse), (expected, expected_lse))
    assert_close(gradients, expected_gradients, gradient=True)
    assert any(np.abs(gradient).max() > 1e-2 for gradient in gradients) or q.shape[1] == 1


def segments(kind: str, length: int = 53) -> dict:
    """Returns segment arguments [2, length]: padding at the end of and inside a row, or packed segments of unequal
    lengths.
    """
    numbers = np.arange(length)
    if kind == 'padding':
        array = np.stack([numbers < length - 9, (numbers % 7 != 3) & (numbers < 30)])
    else:
        array = np.stack([1 + numbers // 20, np.where(numbers < 50, 3 - numbers // 17, 0)])
    array = jnp.asarray(array, jnp.int32)
    return {'query_segments': array, 'key_segments': array}


POSITIONS = np.random.default_rng(0).permutation(53)[None].astype(np.int32)
CELLS = {
    'plain': (SMALL(), {}),
    'padding': (SMALL(), segments('padding')),
    'segments': (SMALL(causal=True), segments('packed')),
    'within_buckets': (SMALL(within_buckets=True, buckets=4), {}),
    'deduplicate': (SMALL(deduplicate=True), {}),
    'dropout': (SMALL(), {'dropout_rate': 0.3}),
    'row dropout': (SMALL(sequential=True), {'dropout_rate': 0.3, 'dropout_rng': jax.random.split(RNG, 2)}),
    'positions': (SMALL(causal=True), {'query_positions': POSITIONS, 'key_positions': POSITIONS}),
    'factorised': (SMALL(buckets=200), {}),
    'all': (
        SMALL(causal=True, within_buckets=True, deduplicate=True, sequential=True, buckets=4),
        segments('packed') | {'dropout_rate': 0.2},
    ),
}


@pytest.mark.parametrize('cell', CELLS)
def test_chunks_equal_the_definition(cell: str):
    mechanism, options = CELLS[cell]
    check(*vectors(53), mechanism, **options)


@pytest.mark.parametrize('length', [1, 63, 64, 65, 1000])
def test_any_length(length: int):
    check(*vectors(length, batch=1, heads=1, width=4), LSH(rounds=2, causal=length % 2 == 0))


def test_two_chunks_are_read_once():
    """With two chunks, the chunk before a chunk is also the chunk after it, and must not be read twice."""
    q, v = vectors(16)
    two, one = (serve_quickly(q, v, LSH(bucket_size=size, rounds=1)) for size in (8, 16))
    assert_close(two, one)


def test_sequential_gives_the_same_numbers():
    q, v = vectors(53)
    at_once, one_by_one = (
        serve_quickly(q, v, SMALL(deduplicate=True, sequential=sequential)) for sequential in (False, True)
    )
    assert_close(one_by_one, at_once)


def test_bfloat16_stays_near_the_float32_definition():
    q, v = vectors(53, dtype=jnp.bfloat16)
    (out, lse, gradients), (expected, expected_lse, expected_gradients) = both(
        q, v, SMALL(causal=True), **segments('packed')
    )
    assert out.dtype == jnp.bfloat16 and lse.dtype == jnp.float32
    assert_close(lse, expected_lse, dtype=jnp.bfloat16)
    for actual, exact in zip((out, *gradients), (expected, *expected_gradients), strict=True):
        assert np.linalg.norm(actual.astype(np.float64) - exact) <= 2e-2 * np.linalg.norm(exact)


def test_one_chunk_over_all_is_full_attention_with_self_as_last_resort():
    q, v = vectors(20)
    keys = q / np.linalg.norm(q, axis=-1, keepdims=True) * np.float32(np.sqrt(q.shape[-1]))
    not_self = -1e5 * np.eye(20, dtype=np.float32)[None, None]
    full = jit(lambda *x: attend_dense(make_request(*x, Softmax(), bias=jnp.asarray(not_self))))(q, keys, v)
    assert_close(serve_quickly(q, v, LSH(bucket_size=32, rounds=1)), full)
    repeated = jax.device_get(serve_quickly(q, v, LSH(bucket_size=32, rounds=4)))
    assert_close(repeated[0], full[0])
    assert_close(repeated[1], np.asarray(full[1]) + np.log(4.0))
    assert_close(serve_quickly(q, v, LSH(bucket_size=32, rounds=4, deduplicate=True)), full)


@pytest.mark.parametrize('rounds', [1, 3])
def test_a_token_reads_itself_alone_where_nothing_else_is_visible(rounds: int):
    q, v = vectors(20)

    @jit
    @functools.partial(jax.grad, argnums=(0, 1), has_aux=True)
    def gradients(q: jax.Array, v: jax.Array) -> tuple:
        out, _ = serve(q, v, LSH(bucket_size=4, rounds=rounds, causal=True))
        return out[:, 0].sum(), out

    (dq, dv), out = jax.device_get(gradients(q, v))
    assert_close(out[:, 0], v[:, 0])
    assert not dq.any()
    expected = np.zeros_like(v)
    expected[:, 0] = 1.0
    assert_close(dv, expected, gradient=True)


def test_a_query_without_keys_gives_zeros_and_zero_gradients():
    q, v = vectors(21, dtype=jnp.bfloat16)
    array = jnp.asarray([[0] * 21, [1] * 15 + [0] * 6])
    q[0, :3] = 0

    @jit
    @functools.partial(jax.grad, argnums=(0, 1), has_aux=True)
    def gradients(q: jax.Array, v: jax.Array) -> tuple:
        out, lse = serve(q, v, SMALL(), query_segments=array, key_segments=array)
        return (out.astype(jnp.float32) ** 2).sum() + lse[1, :, :15].sum(), out

    dq_dv, out = jax.device_get(gradients(q, v))
    assert not out[0].any() and not out[1, 15:].any() and out[1, :15].any()
    for gradient in dq_dv:
        assert np.isfinite(gradient.astype(np.float32)).all() and not gradient[0].any() and not gradient[1, 15:].any()
        assert gradient[1, :15].any()


def test_causal_gradients_to_later_positions_are_exactly_zero():
    q, v = vectors(21, batch=1, heads=1)

    @jit
    def jacobians(q: jax.Array, v: jax.Array) -> Any:
        return jax.jacrev(lambda q, v: serve(q, v, SMALL(causal=True))[0].sum(axis=(0, 2, 3)), (0, 1))(q, v)

    for jacobian in jax.device_get(jacobians(q, v)):
        by_pair = np.abs(jacobian[:, 0, :, 0]).max(axis=-1)
        assert not np.triu(by_pair, 1).any()
        # The first two queries have one key each, so they have no gradient.
        assert np.tril(by_pair)[2:].any(axis=1).all()


def test_gradient_equals_a_finite_difference():
    q, v = vectors(40, batch=1)
    # The steps are large enough for float32, and small enough that no query changes its bucket.
    steps = 2e-3 * np.random.default_rng(9).normal(size=(2, *q.shape)).astype(np.float32)

    def value(q: jax.Array, v: jax.Array) -> jax.Array:
        out, lse = serve(q, v, SMALL(deduplicate=True))
        return (out * jnp.cos(jnp.arange(out.size)).reshape(out.shape)).sum() + jnp.sin(lse).sum()

    @jit
    def run(q: jax.Array, v: jax.Array) -> tuple:
        asked = request(q, v, SMALL())
        return jax.value_and_grad(value, (0, 1))(q, v), make_rounds(asked, lsh_definition.layout_from_request(asked))[1]

    (ahead, _), buckets = run(*(x + step for x, step in zip((q, v), steps, strict=True)))
    (behind, _), other_buckets = run(*(x - step for x, step in zip((q, v), steps, strict=True)))
    np.testing.assert_array_equal(buckets, other_buckets)
    slope = sum((np.asarray(g) * step).sum() for g, step in zip(run(q, v)[0][1], steps, strict=True))
    assert abs(slope) > 1e-3
    ratio = (float(ahead) - float(behind)) / 2 / slope
    # The tolerance is wide, because two values near 10 are rounded.
    assert_close(ratio, 1.0, dtype=jnp.float16, gradient=True)


def test_same_key_same_bits_and_rows_do_not_depend_on_each_other():
    q, v = vectors(53, batch=3)
    run = jit(lambda q, v, rng: serve(q, v, SMALL(), rng=rng))
    out, lse = jax.device_get(run(q, v, RNG))
    again, _ = run(q, v, RNG)
    np.testing.assert_array_equal(out, again)
    turned, turned_lse = jax.device_get(run(q[::-1], v[::-1], RNG))
    assert_close((turned[::-1], turned_lse[::-1]), (out, lse))
    assert np.abs(run(q, v, jax.random.key(4))[0] - out).max() > 1e-2


def test_packed_segments_never_read_each_other():
    q, v = vectors(53)
    options = segments('packed')
    is_first = (np.asarray(options['query_segments']) == 1)[..., None, None]
    run = jit(lambda q, v: serve(q, v, SMALL(), **options)[0])

    def first(v: np.ndarray) -> np.ndarray:
        return np.where(is_first, run(q, v), 0.0)

    noise = np.random.default_rng(1).normal(size=v.shape).astype(np.float32)
    np.testing.assert_array_equal(first(v), first(np.where(is_first, v, noise)))
    assert first(v).any() and np.isfinite(first(v)).all()


def test_vmap_equals_a_loop():
    q, v = vectors(21, batch=3)
    slope = jax.grad(lambda q, v: (serve(q[None], v[None], SMALL())[0] ** 2).sum(), (0, 1))
    mapped = jit(jax.vmap(slope))(q, v)
    one = jit(slope)
    looped = [jax.device_get(one(*row)) for row in zip(q, v, strict=True)]
    assert_close(mapped, tuple(np.stack(gradients) for gradients in zip(*looped, strict=True)), gradient=True)


def test_rows_spread_over_devices_exchange_nothing():
    q, v = vectors(53, batch=8)
    mesh = jax.make_mesh((8,), ('data',), axis_types=(jax.sharding.AxisType.Auto,))
    spread = [jax.device_put(x, NamedSharding(mesh, PartitionSpec('data'))) for x in (q, v)]
    run = jit(jax.grad(lambda q, v: (serve(q, v, SMALL(causal=True))[0] ** 2).sum(), (0, 1)))
    program = run.lower(*spread).compile()
    assert not re.search(r'all-gather|all-to-all|collective-permute|all-reduce', program.as_text())
    assert_close(program(*spread), run(q, v), gradient=True)


@pytest.mark.parametrize(
    'change, message',
    [
        ({'bias': jnp.zeros((1, 1, 7, 7))}, 'no bias'),
        ({'mechanism': Softmax()}, 'computes LSH, not Softmax'),
        ({'query_positions': jnp.arange(7)[None] + 1}, 'one array as query_positions'),
        (
            {'query_segments': jnp.ones((2, 7), jnp.int32), 'key_segments': jnp.zeros((2, 7), jnp.int32)},
            'as query_segm',
        ),
    ],
)
def test_what_is_missing_is_named(change: dict, message: str):
    q, v = jax.device_put(vectors(7))
    change = {'mechanism': SMALL(), 'rng': RNG} | change
    for attend in (lsh.compute_attention, lsh_definition.weights):
        with pytest.raises(NotImplementedError, match=message):
            attend(make_request(q, q, v, **change))


def test_one_numpy_array_of_segments_serves_both_sides_of_a_program():
    query = jax.ShapeDtypeStruct((1, 12, 2, 4), jnp.float32)
    segments = np.repeat(np.arange(1, 4), 4)[None]

    def out(query: jax.Array) -> jax.Array:
        return ea.attend(
            query, query, query, LSH(4, 2), query_segments=segments, key_segments=segments, rng=jax.random.key(0)
        )

    assert jax.eval_shape(out, query).shape == query.shape


def test_cross_attention_and_grouped_heads_are_refused():
    q, v = jax.device_put(vectors(7))
    with pytest.raises(NotImplementedError, match='no grouped heads: 2 query and 1 key heads'):
        lsh.compute_attention(make_request(q, q[:, :, :1], v[:, :, :1], SMALL(), rng=RNG))
    with pytest.raises(NotImplementedError, match='no cross attention: 7 queries and 5 keys'):
        positions = {'query_positions': np.arange(7)[None], 'key_positions': np.arange(5)[None]}
        lsh.compute_attention(make_request(q, q[:, :5], v[:, :5], SMALL(), rng=RNG, **positions))


@functools.cache
def compiled(length: int, mechanism: LSH) -> Any:
    """Compiles the forward and backward pass of one row and one head of width 16."""
    spec = jax.ShapeDtypeStruct((1, length, 1, 16), jnp.float32)
    return jit(jax.grad(lambda q, v: serve(q, v, mechanism)[0].sum(), (0, 1))).lower(spec, spec).compile()


def temporary_bytes(length: int, mechanism: LSH) -> int:
    """Returns the bytes that the program needs besides its arguments and results."""
    return compiled(length, mechanism).memory_analysis().temp_size_in_bytes


def test_memory_grows_linearly():
    needs = [temporary_bytes(length, LSH(causal=True)) for length in (8192, 16384)]
    assert needs[1] <= 2.2 * needs[0], needs
    shapes = re.findall(r'(?:f|s|u|pred|bf)\d*\[([\d,]+)\]', compiled(16384, LSH(causal=True)).as_text())
    largest = max(np.prod([int(size) for size in shape.split(',')]) for shape in shapes)
    assert 16384 * 16 <= largest < 16384**2 / 32


def test_sequential_memory_does_not_grow_with_the_rounds():
    few, many = (temporary_bytes(8192, LSH(rounds=rounds, sequential=True)) for rounds in (2, 8))
    at_once = temporary_bytes(8192, LSH(rounds=8))
    assert many < 1.1 * few  # Each round keeps its order: 8 bytes for each position and head.
    assert many < 0.6 * at_once
