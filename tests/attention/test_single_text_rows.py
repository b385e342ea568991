"""Tests mechanisms that need rows of one text: which keys and queries count, and what happens to the others."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend
from efficient_attention.attention.nystrom.definition import Nystrom
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.single_text_rows import (
    mask_queries_without_keys,
    repeat_key_heads,
    row_segment,
    valid_keys,
    valid_queries,
)
from tests.attention.cells import drawn_operands, inputs, quick
from tests.attention.requests import make_request
from tests.tolerances import assert_close

WHOLE_ROWS = ('linformer(40, 1025)', 'nystrom(40)', 'induced(40)', 'sinkhorn(40, 26)')
ROWS = np.array([[0, 5, 5, 0], [1, 1, 2, 0], [0] * 4], np.int32)
QUERIES = np.array([[5, 6, 0, 5], [1] * 4, [3] * 4], np.int32)


def test_the_text_of_a_row_is_that_of_its_keys():
    x = jax.device_put(np.ones((3, 4, 2, 4), np.float32))

    @jax.jit
    def run(x: jax.Array) -> tuple[jax.Array, ...]:
        request = make_request(x, x, x, Nystrom(2), query_segments=QUERIES, key_segments=ROWS)
        return row_segment(request), valid_keys(request), valid_queries(request), mask_queries_without_keys(x, request)

    texts, keys, queries, out = jax.device_get(run(x))
    np.testing.assert_array_equal(texts, [5, 2, 0])
    np.testing.assert_array_equal(keys[0], [False, True, True, False])
    np.testing.assert_array_equal(queries[0], [True, False, False, True])
    assert not queries[2].any()
    np.testing.assert_array_equal(out[0, :, 0, 0], [1, 0, 0, 1])
    assert np.isnan(out[1]).all() and not out[2].any()
    plain = make_request(x, x, x, Nystrom(2))
    assert row_segment(plain) is valid_keys(plain) is valid_queries(plain) is None
    np.testing.assert_array_equal(mask_queries_without_keys(x, plain), x)


def test_neighbouring_heads_share_keys():
    x = jnp.arange(2.0)[None, None, :, None]
    np.testing.assert_array_equal(repeat_key_heads(x, 4)[0, 0, :, 0], [0, 0, 1, 1])
    assert repeat_key_heads(x, 2) is x


@pytest.mark.parametrize('text', [*WHOLE_ROWS, 'nystrom(8, 6, 3)', 'sinkhorn(4, 5)', 'sinkhorn(4, 5, causal=True)'])
def test_a_padded_row_is_the_row_alone_and_a_packed_one_is_nan(text: str):
    """No row depends on the other rows, and the content of padding counts for nothing."""
    mechanism = parse_mechanism(text)
    call = functools.partial(attend, mechanism=mechanism, learned=drawn_operands(mechanism, 4, 8))
    segments = np.array([[7] * 13 + [0] * 7, [1] * 10 + [2] * 10, [0] * 20, [7] * 13 + [0] * 7], np.int32)
    queries = segments.copy()
    queries[3] = [7] * 5 + [6] * 5 + [0] * 10  # Queries of another text have no keys.

    @quick
    def run(*arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
        return call(*arrays, query_segments=queries, key_segments=segments), call(*(x[:1, :13] for x in arrays))

    out, alone = jax.device_get(run(*inputs(20, batch=4)[0]))
    assert_close(out[:1, :13], alone)
    assert not out[0, 13:].any() and np.isnan(out[1]).all() and not out[2].any()
    assert not out[3, 5:].any() and out[3, :5].any()
