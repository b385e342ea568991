"""Tests that FAVOR+ estimates softmax attention and that its linear forms equal the equations in float64."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.dense_attention import combine_values
from efficient_attention.attention.favor import definition
from efficient_attention.attention.favor import fast_attention as favor
from efficient_attention.attention.favor.definition import FAVOR
from efficient_attention.attention.favor.random_features import draw_features, log_softmax_features
from efficient_attention.attention.features.causal import attend_causal
from efficient_attention.attention.features.chunks import FeatureAttentionInputs
from efficient_attention.attention.features.key_sums import KeySums, zero_key_sums
from efficient_attention.attention.logits.definition import attend_dense
from efficient_attention.attention.softmax.definition import Softmax
from tests.attention.requests import make_request
from tests.tolerances import assert_close

RNG = jax.random.key(7)
EXACT = jax.lax.Precision.HIGHEST
# Nearly all of this file's time is compilation; without LLVM's optimisation it takes half.
jit = functools.partial(jax.jit, compiler_options={'xla_backend_optimization_level': 0})
draw = jit(draw_features, static_argnums=(1, 2, 3))


@pytest.fixture(autouse=True)
def drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws features outside the compiled programs where the random key is known, which halves the size of the
    programs.
    """

    def draw_now(rng: jax.Array, *sizes: int) -> jax.Array:
        if isinstance(rng, jax.core.Tracer):
            return draw_features(rng, *sizes)
        with jax.ensure_compile_time_eval():
            return draw(rng, *sizes)

    monkeypatch.setattr(definition, 'draw_features', draw_now)


def arrays(length: int, *, keys: int | None = None, heads: int = 2, groups: int = 2, width: int = 4) -> tuple:
    """Returns a random query [2, L, H, K], and a key and a value [2, M, G, K]."""
    rng, keys = np.random.default_rng(length), length if keys is None else keys
    shapes = (2, length, heads, width), (2, keys, groups, width), (2, keys, groups, width)
    return tuple(jax.device_put(rng.normal(size=shape).astype(np.float32)) for shape in shapes)


def segments(length: int, seed: int = 0) -> np.ndarray:
    """Returns two rows of segments: 0 (padding), 3 and 9 in random order, and packed texts of 21 tokens."""
    shuffled = np.random.default_rng(seed).choice([0, 3, 9], length)
    return np.stack([shuffled, 1 + np.arange(length) // 21]).astype(np.int32)


def same(rows: jax.Array) -> dict:
    """Returns the segment arguments of self-attention, where queries and keys have the same segments."""
    return {'query_segments': rows, 'key_segments': rows}


def defined(request) -> jax.Array:
    """Computes the output with the dense definition."""
    return combine_values(definition.weights(request)[0], request.value, jnp.dtype(jnp.float32), EXACT)


def exact_features(x: np.ndarray, features: int, kernel: str) -> tuple[np.ndarray, Callable]:
    """Returns features [B, L, H, R] in float64, and a function from their gradient to the gradient of `x`."""
    projection = np.asarray(draw(RNG, features, x.shape[-1], True), np.float64)
    if kernel == 'relu':
        found = np.maximum(x @ projection.T, 0.0) + 1e-3
        return found, lambda gradient: (gradient * (found > 1e-3)) @ projection
    scale = x.shape[-1] ** -0.25
    found = np.exp(scale * x @ projection.T - 0.5 * ((scale * x) ** 2).sum(-1, keepdims=True))

    def pull(gradient: np.ndarray) -> np.ndarray:
        of_logs = gradient * found
        return scale * (of_logs @ projection - scale * x * of_logs.sum(-1, keepdims=True))

    return found, pull


def exact(inputs: tuple, mechanism: FAVOR, allowed: np.ndarray, turn: np.ndarray) -> tuple[np.ndarray, tuple]:
    """Computes the output by the paper's equations in float64, and the gradients of the sum of output times `turn`."""
    q, k, v = (np.asarray(x, np.float64) for x in inputs)
    k, v = (np.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    (query, pull_query), (key, pull_key) = (exact_features(x, mechanism.features, mechanism.kernel) for x in (q, k))
    products = np.einsum('BLHR,BMHR->BHLM', query, key) * allowed[:, None]
    totals = products.sum(-1, keepdims=True)
    totals = np.where(totals == 0.0, 1.0, totals)
    weights = products / totals
    of_weights = np.einsum('BLHK,BMHK->BHLM', turn, v)
    of_products = allowed[:, None] * (of_weights - (weights * of_weights).sum(-1, keepdims=True)) / totals
    of_key = pull_key(np.einsum('BHLM,BLHR->BMHR', of_products, query))
    of_value = np.einsum('BHLM,BLHK->BMHK', weights, turn)
    grouped = (*inputs[1].shape[:3], -1, q.shape[3])
    of_key, of_value = (x.reshape(grouped).sum(3) for x in (of_key, of_value))
    of_query = pull_query(np.einsum('BHLM,BMHR->BLHR', of_products, key))
    return np.einsum('BHLM,BMHK->BLHK', weights, v), (of_query, of_key, of_value)


@functools.partial(jit, static_argnums=(1, 4))
def served(inputs: tuple, mechanism: FAVOR, rows: dict, turn: jax.Array, is_shared: bool) -> tuple:
    """Returns output and gradients of the fast form; with `is_shared`, queries and keys share one array of segments."""
    if is_shared:
        rows = same(rows['query_segments'])
    serve = lambda *inputs: favor.compute_attention(make_request(*inputs, mechanism, rng=RNG, **rows))[0]  # noqa: E731
    out, backward = jax.vjp(serve, *inputs)
    return out, backward(turn)


def compare(inputs: tuple, mechanism: FAVOR, query_rows: Any = None, key_rows: Any = None) -> tuple:
    """Returns output and gradients of the fast form, after a check that they equal the equations in float64."""
    (batch, length), keys = inputs[0].shape[:2], inputs[1].shape[1]
    rows = {} if query_rows is None else {'query_segments': query_rows}
    rows |= {} if key_rows is None else {'key_segments': key_rows}
    allowed = np.ones((batch, length, keys), bool)
    if query_rows is not None:
        others = query_rows if key_rows is None else key_rows
        allowed = (query_rows[:, :, None] == others[:, None]) & (query_rows != 0)[:, :, None]
    allowed = np.tril(allowed) if mechanism.causal else allowed
    turn = np.sin(np.arange(inputs[0].size, dtype=np.float32)).reshape(inputs[0].shape)
    is_shared = bool(rows) and key_rows is None
    out, gradients = jax.device_get(served(inputs, mechanism, rows, turn, is_shared))
    expected, expected_gradients = exact(inputs, mechanism, allowed, turn)
    assert np.abs(expected).max() > 0.1
    assert_close(out, expected)
    assert_close(gradients, expected_gradients, gradient=True)
    return out, gradients


# The estimate of softmax attention


def test_error_against_softmax_falls_with_the_root_of_the_features():
    """The vectors have norms of about 1: there the features vary little, which keeps the bias of the
    denominator small.
    """
    q, k, v = (np.float32(0.35) * np.asarray(x) for x in arrays(24, width=8))
    exact = jit(lambda *inputs: attend_dense(make_request(*inputs, Softmax()))[0])(q, k, v)

    @functools.partial(jit, static_argnums=0)
    def mean_error(features: int, *inputs: jax.Array) -> jax.Array:
        def error(rng: jax.Array) -> jax.Array:
            request = make_request(*inputs, FAVOR(features=features, orthogonal=False), rng=rng)
            return jnp.square(favor.compute_attention(request)[0] - exact).mean()

        return jax.lax.map(error, jax.random.split(RNG, 40)).mean()

    counts = (32, 256, 2048)
    slope = np.polyfit(np.log(counts), [0.5 * np.log(mean_error(count, q, k, v)) for count in counts], 1)[0]
    assert -0.6 <= slope <= -0.4


# Equality with the definition


@pytest.mark.parametrize(
    'length, causal', [*((length, True) for length in (1, 63, 64, 65, 1000)), (1, False), (1000, False)]
)
def test_equals_the_definition_at_any_length(length: int, causal: bool):
    compare(arrays(length, heads=1, groups=1), FAVOR(features=8, causal=causal, chunk=64))


@pytest.mark.parametrize('causal', [False, True])
def test_equals_the_definition_in_segments(causal: bool):
    """Query heads share key heads. The rows are packed, of one segment with padding, or padding only."""
    inputs, mechanism = arrays(70, heads=4), FAVOR(features=8, causal=causal, chunk=16)
    compare(inputs, mechanism, segments(70))
    compare(inputs, mechanism, (np.arange(70) < np.array([[40], [3]])).astype(np.int32))
    out, gradients = compare(inputs, mechanism, 4 * (np.arange(70) < np.array([[0], [50]])).astype(np.int32))
    assert not out[0].any() and not out[1, 50:].any() and out[1, :50].all()
    for gradient in gradients:
        assert np.isfinite(gradient).all() and not gradient[0].any() and not gradient[1, 50:].any()


def test_equals_the_definition_where_queries_have_segments_of_their_own():
    compare(arrays(70), FAVOR(features=8, causal=True, chunk=16), segments(70), segments(70, 1))
    inputs, mechanism = arrays(30, keys=50), FAVOR(features=8, chunk=16)
    compare(inputs, mechanism, segments(30), segments(50, 1))
    out, _ = compare(inputs, mechanism, np.ones((2, 30), np.int32), np.repeat(np.int32([[0], [1]]), 50, axis=1))
    assert not out[0].any() and out[1].all()


def test_equals_the_definition_with_the_relu_kernel():
    """The relu kernel is tested with causal shared key heads, and with fewer queries than keys."""
    compare(arrays(40, heads=4), FAVOR(features=8, causal=True, kernel='relu', chunk=16))
    compare(arrays(20, keys=50), FAVOR(features=8, kernel='relu', chunk=16))


def test_weights_sum_to_one_or_to_zero_and_keep_to_positions():
    (q, k, _), rows = map(np.asarray, arrays(20)), segments(20)

    @jit
    def weights_of(q: jax.Array, **extra) -> jax.Array:
        weights, lse = definition.weights(make_request(q, *[jnp.asarray(k)] * 2, FAVOR(causal=True), rng=RNG, **extra))
        assert lse is None
        return weights

    weights = np.asarray(weights_of(q, query_segments=rows, key_segments=rows))
    assert weights.shape == (2, 2, 20, 20)
    sums = np.broadcast_to((rows != 0)[:, None], (2, 2, 20)).astype(np.float32)
    assert_close(weights.sum(-1), sums)
    assert not np.triu(weights, 1).any()
    last = weights_of(q[:, 17:], query_positions=np.arange(17, 20, dtype=np.int32)[None])
    assert_close(last, np.asarray(weights_of(q))[:, :, 17:])


# Masks are exact


def test_causal_gradient_to_later_positions_is_exactly_zero():
    q, k, v = arrays(50)
    mechanism = FAVOR(features=8, causal=True, chunk=16)

    @jit
    def gradients(position: int) -> tuple:
        def at(k: jax.Array, v: jax.Array) -> jax.Array:
            return favor.compute_attention(make_request(q, k, v, mechanism, rng=RNG))[0][:, position].sum()

        return jax.grad(at, (0, 1))(k, v)

    for position in (0, 15, 16, 40):
        of_k, of_v = jax.device_get(gradients(position))
        assert not of_k[:, position + 1 :].any() and not of_v[:, position + 1 :].any()
        assert of_v[:, : position + 1].all()


@pytest.mark.parametrize('causal', [False, True])
def test_a_segment_of_large_keys_leaves_its_neighbours_exact(causal: bool):
    """One scale for all segments of a chunk would make the smaller features, e^-100 and less, vanish in float32."""
    (q, k, v), mechanism = map(np.asarray, arrays(24, width=16)), FAVOR(features=32, causal=causal)
    rows = np.asarray([[2] * 10 + [1] * 14, [1] * 5 + [3] * 12 + [0] * 7], np.int32)
    # The keys have norms of 0.4 and 40.
    k = np.where((rows == 1)[..., None, None], 0.1 * k, 10.0 + 0.5 * k).astype(np.float32)

    @jit
    def serve(*inputs: jax.Array, **extra: jax.Array) -> jax.Array:
        return favor.compute_attention(make_request(*inputs, mechanism, rng=RNG, **extra))[0]

    packed = np.asarray(serve(q, k, v, **same(rows)))
    for segment in (1, 2, 3):
        alone = np.asarray(serve(q, k, v, **same((rows == segment).astype(np.int32))))
        assert alone[rows == segment].all()
        assert_close(packed[rows == segment], alone[rows == segment], gradient=True)


# Range of float32


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('kernel', ['softmax', 'relu'])
def test_bfloat16_stays_near_the_definition(causal: bool, kernel: str):
    inputs = tuple(np.asarray(x).astype(jnp.bfloat16) for x in arrays(65, width=16))
    mechanism = FAVOR(features=64, causal=causal, kernel=kernel)
    out = jit(lambda *inputs: favor.compute_attention(make_request(*inputs, mechanism, rng=RNG))[0])(*inputs)
    rounded = tuple(np.asarray(x).astype(np.float32) for x in inputs)
    by_definition = jit(lambda *inputs: defined(make_request(*inputs, mechanism, rng=RNG)))(*rounded)
    allowed = np.broadcast_to(np.tri(65) > 0 if causal else True, (2, 65, 65))
    expected = exact(rounded, mechanism, allowed, rounded[0])[0]
    assert_close(by_definition, expected)
    assert out.dtype == jnp.bfloat16
    assert np.linalg.norm(np.asarray(out).astype(np.float32) - expected) <= 2e-2 * np.linalg.norm(expected)


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize('causal', [False, True])
def test_norms_of_50_stay_finite_forward_and_backward(causal: bool, dtype: jnp.dtype):
    q, k, v = map(np.asarray, arrays(40, width=64))
    q, k = (np.float32(50.0) * x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    ramp = np.linspace(0.02, 1.0, 40, dtype=np.float32)[None, :, None, None]

    @jit
    def gradients(*inputs: jax.Array) -> tuple:
        def total(*inputs: jax.Array) -> tuple:
            out = favor.compute_attention(make_request(*inputs, FAVOR(64, causal, chunk=16), rng=RNG))[0].astype(
                jnp.float32
            )
            return (out**2).sum(), out

        return jax.grad(total, (0, 1, 2), has_aux=True)(*inputs)

    for name, keys in {'random': k, 'opposite': -q, 'growing': k * ramp, 'shrinking': k * ramp[:, ::-1]}.items():
        gradient, out = jax.device_get(gradients(*(x.astype(dtype) for x in (q, keys, v))))
        assert all(np.isfinite(x.astype(np.float32)).all() for x in (*gradient, out)), name
        assert out.all(), f'{name}: a query that may read keys reads none'
        assert np.abs(out).max() <= np.abs(v).max() * 1.01, name


@jit
def causal_sums(*inputs: jax.Array) -> tuple[jax.Array, ...]:
    """Returns the output, the definition's output, the output of the first 21 positions only, and the features'
    logarithms.
    """

    def request(length: int):
        return make_request(*(x[:, :length] for x in inputs), FAVOR(64, causal=True, chunk=16), rng=RNG)

    whole = request(inputs[0].shape[1])
    return favor.compute_attention(whole)[0], defined(whole), favor.compute_attention(request(21))[0], logarithms(whole)


@pytest.mark.parametrize('norm', [1.0, 50.0])
@pytest.mark.parametrize('name', ['random', 'growing', 'shrinking'])
def test_causal_sums_equal_float64_and_know_nothing_of_later_keys(name: str, norm: float):
    """Keys that grow inside a chunk: on one scale the earlier keys of the chunk would be too small for float32."""
    q, k, v = map(np.asarray, arrays(40, width=64))
    ramp = np.linspace(0.02, 1.0, 40, dtype=np.float32)[None, :, None, None]
    ramp = {'random': np.ones_like(ramp), 'growing': ramp, 'shrinking': ramp[:, ::-1]}[name]
    q, k = (np.float32(norm) * x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    out, by_definition, short, logs = jax.device_get(causal_sums(q, k * ramp, v))
    assert_close(out, in_float64(logs, v), gradient=True)
    assert_close(by_definition, out, gradient=True)
    assert_close(out[:, :21], short, gradient=True)


# Decoding


def stepper(mechanism: FAVOR, width: int) -> Callable:
    """Returns a function from a state and new tokens' query, key and value to their outputs and the next state."""
    features = mechanism.feature_map(RNG, width)

    @jit
    def step(state: KeySums, *new: jax.Array) -> tuple[jax.Array, KeySums]:
        (out, _), state = attend_causal(FeatureAttentionInputs(*new), state, features, mechanism.chunk)
        return out, state

    return step


def test_token_by_token_equals_the_causal_form():
    q, k, v = map(np.asarray, arrays(21, heads=4))
    mechanism = FAVOR(features=16, causal=True, chunk=8)
    parallel = jit(lambda *inputs: favor.compute_attention(make_request(*inputs, mechanism, rng=RNG))[0])(q, k, v)
    step = stepper(mechanism, 4)
    out, state = step(zero_key_sums(2, 2, 16, 4), q[:, :11], k[:, :11], v[:, :11])
    outs = [out]
    for i in range(11, 21):
        out, state = step(state, q[:, i : i + 1], k[:, i : i + 1], v[:, i : i + 1])
        outs.append(out)
    assert isinstance(state, KeySums) and state.sums_BGRK.shape == (2, 2, 16, 4)
    assert_close(np.concatenate(outs, axis=1), parallel)


def test_decoding_rescales_its_state_to_a_later_larger_key():
    """An early key whose features are e^-180 of a later key's must neither vanish nor overflow."""
    q, k, v = (np.array(x) for x in arrays(4, width=16))
    k[:, :2] *= 14.0
    mechanism = FAVOR(features=16, causal=True)
    step = stepper(mechanism, 16)
    state, outs = zero_key_sums(2, 2, 16, 16), []
    for i in range(4):
        out, state = step(state, *(x[:, i : i + 1] for x in (q, k, v)))
        outs.append(out)
    logs = jit(lambda *inputs: logarithms(make_request(*inputs, mechanism, rng=RNG)))(q, k, v)
    assert_close(np.concatenate(outs, axis=1), in_float64(logs, v), gradient=True)


def logarithms(request) -> tuple[jax.Array, jax.Array]:
    """Returns the logarithms [B, H, L, R] of the softmax kernel's features, of queries and of keys."""
    projection = definition.draw_features(RNG, request.mechanism.features, request.key.shape[3], True)
    return tuple(log_softmax_features(x.swapaxes(1, 2), projection) for x in (request.query, request.key))


def in_float64(logs: tuple, v: np.ndarray) -> np.ndarray:
    """Computes the causal output in float64 from logarithms of features, without subtracting a maximum."""
    products = np.tril(np.einsum('BHLR,BHMR->BHLM', *(np.exp(np.asarray(log, np.float64)) for log in logs)))
    return np.einsum('BHLM,BMHK->BLHK', products / products.sum(-1, keepdims=True), np.asarray(v, np.float64))


# Unsupported calls


@pytest.mark.parametrize(
    'mechanism, change, message',
    [
        (Softmax(), {}, 'favor computes FAVOR, not Softmax'),
        (FAVOR(), {'bias': jnp.zeros((1, 1, 7, 7))}, 'no additive bias'),
        (FAVOR(), {'dropout_rate': 0.1}, 'no dropout on weights'),
        (FAVOR(), {'return_lse': True}, 'no log-sum-exp'),
        (FAVOR(causal=True), {'query_positions': np.arange(1, 8)[None]}, 'positions than 0, 1'),
        (FAVOR(causal=True), {'query_positions': jnp.arange(7)[None]}, 'positions than 0, 1'),
    ],
)
def test_what_it_lacks_is_refused(mechanism, change: dict, message: str):
    request = make_request(*arrays(7), mechanism, rng=RNG, **change)
    with pytest.raises(NotImplementedError, match=message):
        favor.compute_attention(request)


def test_unequal_lengths_are_refused_where_causal_and_positions_are_free_elsewhere():
    q, k, v = arrays(5, keys=8)
    positions = {'query_positions': np.arange(3, 8)[None]}
    with pytest.raises(NotImplementedError, match='unequal lengths'):
        favor.compute_attention(make_request(q, k, v, FAVOR(causal=True), rng=RNG, **positions))
    with pytest.raises(NotImplementedError, match='additive bias'):
        definition.weights(make_request(q, k, v, FAVOR(), rng=RNG, bias=jnp.zeros((1, 1, 5, 8))))
    plain, numbered = (
        jit(lambda *x, extra=extra: favor.compute_attention(make_request(*x, FAVOR(), rng=RNG, **extra))[0])(q, k, v)
        for extra in ({}, positions)
    )
    np.testing.assert_array_equal(plain, numbered)


# Calls under jax.vmap


def test_vmap_equals_a_loop():
    inputs = tuple(np.stack([x, x[::-1] + 1.0]) for x in map(np.asarray, arrays(20)))
    rows = np.stack([segments(20), np.ones((2, 20), np.int32)])

    def serve(q: jax.Array, k: jax.Array, v: jax.Array, rows: jax.Array) -> jax.Array:
        request = make_request(q, k, v, FAVOR(8, chunk=8), rng=RNG, query_segments=rows, key_segments=rows)
        return favor.compute_attention(request)[0]

    every = (*inputs, rows)
    loop, mapped = jit(lambda *x: (jax.lax.map(lambda row: serve(*row), x), jax.vmap(serve)(*x)))(*every)
    assert_close(mapped, loop)
