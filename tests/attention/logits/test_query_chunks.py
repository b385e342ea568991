"""Tests chunks of queries: how many there are, and which keys each one reads; test_additive.py tests the results."""

import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.logits import query_chunks as logits_serve
from efficient_attention.attention.logits.query_chunks import (
    map_query_chunks,
    merge_chunks,
    query_chunk_size,
    split_into_chunks,
)
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.request import Request
from tests.attention.requests import make_request


def request_of(length: int) -> Request:
    x = jnp.ones((2, length, 3, 8))
    return make_request(x, x, x, parse_mechanism('full'))


def test_parts_have_no_more_scores_than_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logits_serve, 'PART_BYTES', 4 * 2 * 3 * 20 * 7)
    assert query_chunk_size(request_of(20)) == 7
    monkeypatch.setattr(logits_serve, 'PART_BYTES', 1)
    assert query_chunk_size(request_of(20)) == 1


def test_parts_are_put_together_in_their_order():
    x = np.arange(2 * 11 * 3).reshape(2, 11, 3)
    parts = split_into_chunks(x, 1, 4, 3)
    assert parts.shape == (4, 2, 3, 3)
    np.testing.assert_array_equal(merge_chunks(parts, 1, 11), x)


def test_each_part_knows_the_numbers_of_its_queries(monkeypatch: pytest.MonkeyPatch):
    """Dropout depends on the index of a query in the whole row, so each part must know these indices."""
    monkeypatch.setattr(logits_serve, 'PART_BYTES', 4 * 2 * 3 * 20 * 7)

    def numbers(part: Request) -> tuple:
        shape = part.query.shape
        return jnp.broadcast_to(part.global_indices('query')[None, :, None, None], shape), None

    found, lse = map_query_chunks(request_of(20), numbers)
    np.testing.assert_array_equal(found[0, :, 0, 0], np.arange(20))
    assert lse is None
