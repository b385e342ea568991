"""Rows of one text: which keys and queries count, and what becomes of the others."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend
from efficient_attention.attention.nystrom.definition import Nystrom
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.whole_rows import finish, per_head, text_of_row, valid_keys, valid_queries
from tests.attention.cells import drawn_operands, inputs, quick
from tests.attention.requests import make_request
from tests.tolerances import assert_close

WHOLE_ROWS = ('linformer(40, 1025)', 'nystrom(40)', 'induced(40)', 'sinkhorn(40, 26)')
ROWS = jnp.asarray([[0, 5, 5, 0], [1, 1, 2, 0], [0] * 4], jnp.int32)
QUERIES = jnp.asarray([[5, 6, 0, 5], [1] * 4, [3] * 4], jnp.int32)


def test_the_text_of_a_row_is_that_of_its_keys():
    x = jnp.ones((3, 4, 2, 4))
    request = make_request(x, x, x, Nystrom(2), query_segments=QUERIES, key_segments=ROWS)
    np.testing.assert_array_equal(text_of_row(request), [5, 2, 0])
    np.testing.assert_array_equal(valid_keys(request)[0], [False, True, True, False])
    np.testing.assert_array_equal(valid_queries(request)[0], [True, False, False, True])
    assert not valid_queries(request)[2].any()
    out = np.asarray(finish(x, request))
    np.testing.assert_array_equal(out[0, :, 0, 0], [1, 0, 0, 1])
    assert np.isnan(out[1]).all() and not out[2].any()
    plain = make_request(x, x, x, Nystrom(2))
    assert text_of_row(plain) is valid_keys(plain) is valid_queries(plain) is None
    np.testing.assert_array_equal(finish(x, plain), x)


def test_neighbouring_heads_share_keys():
    x = jnp.arange(2.0)[None, None, :, None]
    np.testing.assert_array_equal(per_head(x, 4)[0, 0, :, 0], [0, 0, 1, 1])
    assert per_head(x, 2) is x


@pytest.mark.parametrize('text', [*WHOLE_ROWS, 'nystrom(8, 6, 3)', 'sinkhorn(4, 5)', 'sinkhorn(4, 5, causal=True)'])
def test_a_padded_row_is_the_row_alone_and_a_packed_one_is_nan(text: str):
    """No row depends on the others; what padding holds counts for nothing."""
    mechanism, (q, k, v) = parse_mechanism(text), inputs(20, batch=3)[0]
    run = quick(functools.partial(attend, mechanism=mechanism, learned=drawn_operands(mechanism, 4, 8)))
    segments = jnp.asarray([[7] * 13 + [0] * 7, [1] * 10 + [2] * 10, [0] * 20])
    out = run(q, k, v, query_segments=segments, key_segments=segments)
    assert_close(out[:1, :13], run(q[:1, :13], k[:1, :13], v[:1, :13]))
    assert not out[0, 13:].any() and jnp.isnan(out[1]).all() and not out[2].any()
    queries = jnp.asarray([[7] * 5 + [6] * 5 + [0] * 10] * 3)  # those of another text have no keys
    other = run(q[:1], k[:1], v[:1], query_segments=queries[:1], key_segments=segments[:1])
    assert not other[0, 5:].any() and other[0, :5].any()
