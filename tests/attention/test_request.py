"""Tests the request that backends receive."""

import dataclasses
import inspect

import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention import attend as attend_module
from efficient_attention.attention.request import AttendKeywords, CallOptions, QueryKeyPair, Request, ShardPlacement
from efficient_attention.attention.softmax import backend_choice as softmax
from efficient_attention.attention.softmax.definition import Softmax


def test_the_keywords_of_attend_stand_alike_in_three_places():
    parameters = inspect.signature(attend_module.attend).parameters.values()
    keywords = {one.name: one.default for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}
    options = {field.name: field.default for field in dataclasses.fields(CallOptions)}
    assert options.pop('layer', 'missing') is None  # only models give the number of the layer that calls
    assert list(keywords.items()) == list(options.items())
    assert [*AttendKeywords.__annotations__, 'return_lse'] == list(keywords)
    types = {field.name: field.type for field in dataclasses.fields(CallOptions)}
    assert all(types[name] == kind for name, kind in AttendKeywords.__annotations__.items())


def test_attend_fills_in_positions_and_hands_over_every_argument(monkeypatch: pytest.MonkeyPatch):
    """A backend that receives every argument cannot ignore one unknowingly."""
    seen: list[Request] = []

    def serve(request: Request):
        seen.append(request)
        return request.query, None

    monkeypatch.setitem(softmax.BACKENDS, 'spy', serve)
    q, k = jnp.ones((1, 3, 2, 4)), jnp.ones((1, 5, 1, 4))
    bias, segments = jnp.zeros((1, 2, 3, 5)), (jnp.ones((1, 3), jnp.int32), jnp.ones((1, 5), jnp.int32))
    given = {'bias': bias, 'query_segments': segments[0], 'key_segments': segments[1]}
    attend_module.attend(q, k, k, Softmax(), backend='spy', **given)
    (request,) = seen
    np.testing.assert_array_equal(request.positions.key, [[0, 1, 2, 3, 4]])
    np.testing.assert_array_equal(request.positions.query, [[0, 1, 2]])
    assert (request.bias is bias, request.segments.key is segments[1], request.return_lse) == (True, True, False)
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.bias = None


def test_a_block_of_whole_rows_knows_where_it_lies():
    q, positions = jnp.ones((1, 3, 2, 4)), np.arange(3, dtype=np.int32)[None]
    whole = Request(q, q, q, Softmax(), None, QueryKeyPair(positions, positions + 6), None)
    assert whole.full_row_positions is whole.positions and whole.full_row_key_count == 3
    assert [whole.global_indices(axis).tolist() for axis in ('head', 'query', 'key')] == [[0, 1], [0, 1, 2], [0, 1, 2]]
    block = dataclasses.replace(whole, place=ShardPlacement(12, QueryKeyPair(9, 3), QueryKeyPair(2, -1), first_head=4))
    assert block.full_row_key_count == 12
    assert [x.tolist() for x in block.full_row_positions] == [[[2, 3, 4]], [[5, 6, 7]]]
    assert [block.global_indices(axis).tolist() for axis in ('head', 'query', 'key')] == [
        [4, 5],
        [9, 10, 11],
        [3, 4, 5],
    ]
