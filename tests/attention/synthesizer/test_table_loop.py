"""Tests the loop over a table's rows against the dense definition, and which calls it leaves to softmax with a bias."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from efficient_attention.attention.attend import attend
from efficient_attention.attention.devices import using_platform
from efficient_attention.attention.patterns import Causal
from efficient_attention.attention.request import Dropout, QueryKeyPair, Request
from efficient_attention.attention.synthesizer.definition import Synthesizer
from efficient_attention.attention.synthesizer.table_loop import is_supported
from tests.tolerances import assert_close

QUERIES, KEYS, LENGTH = 515, 521, 530


@pytest.fixture(autouse=True)
def _one_device() -> Iterator[None]:
    with using_platform('cpu', 1):
        yield


def vectors(length: int, seed: int) -> Array:
    return jax.random.normal(jax.random.key(seed), (2, length, 2, 4))


def segments(length: int) -> Array:
    """Returns segments of a packed row with padding, and of a row with a few tokens before padding."""
    places = np.arange(length)
    rows = np.stack([np.where(places < 500, 1 + places // 200, 0), places < 7])
    return jnp.asarray(rows, jnp.int32)


@pytest.mark.parametrize('has_segments', [False, True])
@pytest.mark.parametrize('kind', ['random', 'random+dot'])
def test_outputs_and_gradients_are_those_of_the_definition(kind: str, has_segments: bool):
    mechanism, table = Synthesizer(kind, LENGTH), jax.random.normal(jax.random.key(3), (2, LENGTH, LENGTH))
    q, k, v = vectors(QUERIES, 0), vectors(KEYS, 1), vectors(KEYS, 2)
    both: dict[str, Any] = {'query_positions': np.arange(QUERIES)[None], 'key_positions': np.arange(KEYS)[None]}
    if has_segments:
        both |= {'query_segments': segments(QUERIES), 'key_segments': segments(KEYS)}
    weights = vectors(QUERIES, 4)
    found = {}
    for backend in ('auto', 'reference'):

        def loss(q: Array, k: Array, v: Array, table: Array, backend: str = backend) -> tuple[Array, Any]:
            out, lse = attend(q, k, v, mechanism, learned={'table': table}, backend=backend, return_lse=True, **both)
            is_read = lse > -1e30
            return jnp.sum(out * weights) + jnp.sum(jnp.where(is_read, lse, 0.0)), (out, jnp.where(is_read, lse, 0.0))

        found[backend] = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True))(q, k, v, table)
    (_, outputs), gradients = found['auto']
    (_, expected), its_gradients = found['reference']
    for one, other in zip((*outputs, *gradients), (*expected, *its_gradients), strict=True):
        assert_close(one, other)
    assert not np.asarray(gradients[3])[:, QUERIES:].any() and np.asarray(gradients[3])[:, :QUERIES, :KEYS].any()
    assert np.asarray(gradients[0]).any() == np.asarray(gradients[1]).any() == (kind == 'random+dot')


def test_what_the_loop_serves():
    def request(length: int, mechanism: Synthesizer, **options: Any) -> Request:
        q, positions = vectors(length, 0), np.arange(length)[None]
        options = {'segments': None, 'positions': QueryKeyPair(positions, positions), 'dropout': None} | options
        return Request(q, q, q, mechanism, **options)

    random = Synthesizer('random', LENGTH)
    assert is_supported(request(QUERIES, random))
    assert not is_supported(request(500, random))
    assert is_supported(request(QUERIES, Synthesizer('random+dot', LENGTH)))
    for kind in ('dense', 'factorized'):
        assert not is_supported(request(QUERIES, Synthesizer(kind, LENGTH)))
    assert not is_supported(request(QUERIES, Synthesizer('random', LENGTH, pattern=Causal())))
    moved = np.arange(QUERIES)[None] + 1
    for options in (
        {'dropout': Dropout(0.1, jax.random.key(0))},
        {'bias': jnp.zeros(QUERIES)},
        {'positions': QueryKeyPair(moved, moved)},
        {'backend': 'blocked'},
    ):
        assert not is_supported(request(QUERIES, random, **options))


@pytest.mark.parametrize('kind', ['random', 'random+dot'])
def test_temporary_memory_grows_as_the_length_beside_the_table(kind: str):
    def temporary(length: int) -> int:
        mechanism = Synthesizer(kind, length)
        x = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)
        table = jax.ShapeDtypeStruct((2, length, length), jnp.float32)

        def loss(q: Array, k: Array, v: Array, table: Array) -> Array:
            return attend(q, k, v, mechanism, learned={'table': table}).sum()

        program = jax.jit(jax.grad(loss, (0, 1, 2, 3))).lower(x, x, x, table).compile()
        return program.memory_analysis().temp_size_in_bytes

    small, large = temporary(1_024), temporary(2_048)
    # The limit, in bytes, is less than the pairs of one head.
    assert large <= 2.2 * small and large < 4 * 2_048 * 2_048
