"""Tests that every term of the logits has the methods that the tile loops call."""

import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.softmax.logit_term import LogitTerm
from efficient_attention.attention.softmax.tile_bias import ArrayBias, FunctionBias
from efficient_attention.attention.softmax.tile_relative import RelativeBias

BY_QUERY, BY_KEY = jnp.zeros((1, 1, 1, 3, 4, 1, 1)), jnp.zeros((1, 1, 1, 1, 1, 3, 4))
TERMS = {
    'array by query': (ArrayBias(BY_QUERY), True, True),
    'array by key': (ArrayBias(BY_KEY), False, True),
    'function': (FunctionBias(lambda query, key: query - key, (0,), 1), False, False),
    'relative': (RelativeBias(jnp.zeros((1, 1, 3, 1, 4, 2)), jnp.zeros((1, 1, 1, 5, 4, 2)), 1, 3), True, True),
}


@pytest.mark.parametrize('name', TERMS)
def test_what_a_term_says_of_its_gradient_and_its_heads(name: str):
    term, has_tile_gradient, splits_by_head = TERMS[name]
    assert isinstance(term, LogitTerm)
    assert (term.has_tile_gradient, term.splits_by_head) == (has_tile_gradient, splits_by_head)


def test_the_protocol_alone_is_no_term():
    with pytest.raises(TypeError, match='abstract'):
        LogitTerm()


def test_a_gradient_by_tile_lacks_the_empty_tile_until_it_is_joined():
    by_tile = np.arange(8.0, dtype=np.float32).reshape(2, 1, 1, 1, 4, 1, 1)
    whole = TERMS['array by query'][0].finish_gradient(None, [jnp.asarray(by_tile)]).array_bghnSnS
    assert whole.shape == BY_QUERY.shape
    np.testing.assert_array_equal(whole[0, 0, 0, :2, :, 0, 0], by_tile[:, 0, 0, 0, :, 0, 0])
    assert not whole[0, 0, 0, 2].any()
