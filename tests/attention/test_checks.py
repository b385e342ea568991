"""Tests that bad arguments are refused in one line, for every mechanism and backend.

The functions are called without the test suite's run-time type checks, as users call them.
"""

import inspect
import re
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import efficient_attention as ea
from efficient_attention.attention import checks as request_checks
from efficient_attention.attention.checks import has_equal_values, is_concrete, is_on_cpu, is_rng_key
from efficient_attention.attention.favor.definition import FAVOR
from efficient_attention.attention.lsh.definition import LSH
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.patterns import Causal
from efficient_attention.attention.softmax.definition import Softmax
from tests.attention.requests import make_request

B, L, M, H, G, K = 2, 7, 5, 4, 2, 8
RNG = jax.random.key(0)


def ones(shape: tuple, dtype: Any = np.float32) -> jax.Array:
    """Returns an array of ones, without compiling a program for each shape."""
    return jnp.asarray(np.ones(shape, dtype))


def plain(function):
    """Returns the function without the wrapper that the test suite's import hook adds."""
    return inspect.unwrap(function)


def vectors() -> dict[str, jax.Array]:
    return {'query': ones((B, L, H, K)), 'key': ones((B, M, G, K)), 'value': ones((B, M, G, K))}


BAD_VECTORS = [
    ({'query': ones((B, L, H, K), int)}, 'query is of type int32; it must be an array of floating-point numbers'),
    ({'key': [1.0]}, 'key is of type list; it must be an array'),
    ({'value': ones((B, M, G, K), jnp.bfloat16)}, 'must share one dtype; got float32, float32, bfloat16'),
    ({'query': ones((B, 0, H, K))}, r'query \(2, 0, 4, 8\) or key \(2, 5, 2, 8\) has an empty axis'),
    (
        {'query': ones((B, L, 3, K))},
        r'query has 3 heads, which is not a multiple of the 2 heads of key; query is \(2, 7, 3, 8\), key',
    ),
    (
        {'key': ones((B, M, G, 9))},
        r'key has head width 9, but query has 8; they must be equal; query is \(2, 7, 4, 8\), key \(2, 5, 2, 9\)',
    ),
    (
        {'key': ones((3, M, G, K))},
        r'key has batch size 3, but query has 2; they must be equal; query is \(2, 7, 4, 8\), key \(3, 5, 2, 8\)',
    ),
    ({'value': ones((B, M, G, 9))}, r'value has shape \(2, 5, 2, 9\); it must be the shape of key, \(2, 5, 2, 8\)'),
    ({'key': ones((M, G, K))}, r'key has shape \(5, 2, 8\); it must be \[B, M, G, K\]'),
]


@pytest.mark.parametrize('change, line', BAD_VECTORS, ids=[line[:30] for _, line in BAD_VECTORS])
def test_vectors(change: dict, line: str):
    check = plain(request_checks.check_vectors)
    check(**vectors(), mechanism=Softmax())
    with pytest.raises(ValueError, match=line):
        check(**(vectors() | change), mechanism=Softmax())


@pytest.mark.parametrize(
    'name, part', [('mask', 'Causal() & Window(8)'), ('is_causal', 'Softmax(Causal())'), ('dropout_p', 'dropout_rate')]
)
def test_arguments_of_other_libraries_are_answered(name: str, part: str):
    q = ones((B, L, H, K))
    for who, call in (('attend', ea.attend), ('attention_weights', ea.attention_weights)):
        with pytest.raises(TypeError, match=f'^{who} has no argument {name}: .*{re.escape(part)}'):
            call(q, q, q, Softmax(), **{name: None})
    for model in (ea.Encoder, ea.Decoder, ea.EncoderDecoder):
        with pytest.raises(TypeError, match=f'^{model.__name__} has no argument {name}: .*{re.escape(part)}'):
            model.__call__(None, **{name: None})


def test_a_mask_as_mechanism_is_answered_without_its_values():
    with pytest.raises(ValueError, match=r'^mechanism is an array; if it is a mask, .* Softmax\(Causal\(\)\)$'):
        plain(request_checks.check_mechanism)(ones((L, M)))


def test_learned_arrays_have_names():
    with pytest.raises(ValueError, match='^learned is of type ArrayImpl; it must be a dict of arrays by name$'):
        plain(request_checks.check_learned)(ones((B, L, H, K)), Softmax(), ones((1, 4, 20)))


def test_lsh_takes_one_array_as_query_and_key():
    check, q = plain(request_checks.check_vectors), ones((B, L, H, K))
    check(q, q, q, LSH())
    check(q, q + 0, q, LSH())  # The key is another array, but its values are known and equal.
    with pytest.raises(ValueError, match='its keys are its queries; pass one array as query and key'):
        check(q, 2 * q, q, LSH())
    with pytest.raises(ValueError, match='its keys are its queries'):
        jax.eval_shape(lambda q, k: check(q, k, q, LSH()), q, q)


ids_L, ids_M = ones((B, L), int), ones((B, M), int)


@pytest.mark.parametrize(
    'given, line',
    [
        ((ids_L, None), 'query_segments and key_segments go together'),
        ((ids_L[:, :6], ids_M), r'query_segments has shape \(2, 6\); it must be \(2, 7\)'),
        ((ids_L, ids_L), r'key_segments has shape \(2, 7\); it must be \(2, 5\)'),
        ((ids_L[:1], ids_M), r'query_segments has shape \(1, 7\)'),
        ((ids_L[0], ids_M), r'query_segments has shape \(7,\)'),
        ((ids_L > 0, ids_M), 'query_segments is of type bool; it must be an array of integers'),
        (([1], ids_M), 'query_segments is of type list'),
        ((ids_L - 2, ids_M), r'query_segments holds -1; segments are from 0 to 2\^31 - 1, and 0 is padding'),
        ((ids_L, np.full((B, M), 2**31)), r'key_segments holds 2147483648; segments are from 0'),
    ],
)
def test_segments(given: tuple, line: str):
    q, k = vectors()['query'], vectors()['key']
    check = plain(request_checks.check_segments)
    check(q, k, ids_L, ids_M)
    with pytest.raises(ValueError, match=line):
        check(q, k, *given)


def test_segments_of_numpys_own_type_are_taken_without_a_warning():
    q, k = vectors()['query'], vectors()['key']
    request = make_request(
        q, k, k, Softmax(), query_segments=np.ones((B, L), np.int64), key_segments=np.ones((B, M), np.int64)
    )
    assert request.segments.query.dtype == request.segments.key.dtype == np.int32


def test_segments_that_are_not_known_yet_are_taken_as_they_are():
    check = plain(request_checks.check_segments)
    q, k = vectors()['query'], vectors()['key']
    jax.eval_shape(lambda ids: check(q, k, ids, ids_M), ids_L - 2)


class OnAccelerator:
    """A stand-in for segments on an accelerator, whose values must not be fetched."""

    dtype, shape, is_fully_addressable = np.dtype(np.int32), (B, L), True

    def devices(self) -> list:
        return [SimpleNamespace(platform='gpu')]

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise AssertionError('the values were fetched')


def test_segments_on_an_accelerator_are_not_fetched():
    q, k = vectors()['query'], vectors()['key']
    assert (
        is_concrete(OnAccelerator()) and not is_on_cpu(OnAccelerator()) and is_on_cpu(ids_L) and is_on_cpu(np.ones(1))
    )
    plain(request_checks.check_segments)(q, k, OnAccelerator(), ids_M)


@pytest.mark.parametrize(
    'given, line',
    [
        ((np.arange(6)[None], None), r'query_positions has shape \(1, 6\); it must be \(2, 7\) or \(1, 7\)'),
        ((np.arange(7), None), r'query_positions has shape \(7,\)'),
        ((None, jnp.asarray(np.arange(6)[None])), r'key_positions has shape \(1, 6\)'),
        ((np.arange(7.0)[None], None), 'query_positions is of type float64; it must be an array of integers'),
        ((None, None), '7 queries and 5 keys: .* compares positions, so give query_positions'),
    ],
)
def test_positions(given: tuple, line: str):
    q, k = vectors()['query'], vectors()['key']
    check = plain(request_checks.check_positions)
    check(q, k, Softmax(Causal()), np.arange(L)[None], None)
    check(q, k, Softmax(), None, None)
    with pytest.raises(ValueError, match=line):
        check(q, k, Softmax(Causal()), *given)


@pytest.mark.parametrize(
    'bias, line',
    [
        (ones((1, 3, L, M)), r'bias has shape \(1, 3, 7, 5\); it must broadcast to \[B, H, L, M\] = \(2, 4, 7, 5\)'),
        (ones((L - 1, M)), r'bias has shape \(6, 5\)'),
        (ones((1, 1, 1, L, M)), 'bias has shape'),
        (ones((L, M), bool), 'bias is of type bool; it must be an array of floating-point numbers, or a function'),
        ('alibi', 'bias is of type str'),
    ],
)
def test_bias(bias: object, line: str):
    q, k = vectors()['query'], vectors()['key']
    check = plain(request_checks.check_bias)
    for fits in (None, abs, ones((B, H, L, M)), ones((1, 1, L, 1)), ones(M), ones(())):
        check(q, k, fits)
    with pytest.raises(ValueError, match=line):
        check(q, k, bias)


@pytest.mark.parametrize(
    'mechanism, rate, rng, dropout_rng, line',
    [
        (Softmax(), 1.0, RNG, None, r'dropout_rate is 1.0; it must be at least 0 and below 1'),
        (Softmax(), 0.1, None, None, 'attention dropout needs dropout_rng or rng'),
        (FAVOR(), 0.0, None, RNG, 'samples at random and needs rng, one key'),
        (LSH(), 0.0, jax.random.split(RNG, 2), None, r'needs rng, one key; got keys of shape \(2,\)'),
        (
            LSH(),
            0.0,
            jnp.asarray(np.zeros(2, np.uint32)),
            None,
            r'rng is not a typed key; make one with jax.random.key\(seed\)',
        ),
        (Softmax(), 0.1, None, 3, 'dropout_rng is not a typed key'),
        (
            Softmax(),
            0.1,
            None,
            jax.random.split(RNG, 3),
            r'dropout_rng has keys of shape \(3,\); it must be one key, or one per row \(2\)',
        ),
    ],
)
def test_keys(mechanism: Mechanism, rate: float, rng: object, dropout_rng: object, line: str):
    check = plain(request_checks.check_rng_keys)
    check(Softmax(), B, 0.1, None, jax.random.split(RNG, B))
    check(LSH(), B, 0.1, RNG, None)
    with pytest.raises(ValueError, match=line):
        check(mechanism, B, rate, rng, dropout_rng)


def test_dropout_and_a_mechanism_that_draws_never_share_a_key():
    q = ones((B, L, H, K))
    request = make_request(q, q, q, LSH(), rng=RNG, dropout_rate=0.1)
    assert request.dropout.rng != request.rng == RNG
    assert make_request(q, q, q, Softmax(), rng=RNG, dropout_rate=0.1).dropout.rng == RNG


def test_known_rows_of_positions_that_are_alike_become_one():
    q = ones((B, L, H, K))
    same, other = np.arange(L)[None].repeat(B, 0), np.arange(B * L).reshape(B, L)
    request = make_request(q, q, q, Softmax(), query_positions=same, key_positions=other)
    assert request.positions.query.shape == (1, L) and request.positions.key.shape == (B, L)


def test_what_is_known_and_equal():
    x = jnp.arange(3)
    assert (
        is_concrete(x)
        and is_concrete(np.arange(3))
        and has_equal_values(x, np.arange(3))
        and not has_equal_values(x, x + 1)
    )
    assert is_rng_key(RNG) and not is_rng_key(x) and not is_rng_key(3)
    seen = []
    jax.eval_shape(lambda y: seen.append((is_concrete(y), has_equal_values(y, y), has_equal_values(y, x))), x)
    assert seen == [(False, True, False)]
