"""Tests that routing attention's fast form makes no array of all pairs, and that clusters share one dropout mask."""

import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.routing.fast_attention import average_over_clusters, gather_tokens
from tests.attention.implementation_checks import largest_array


@pytest.mark.parametrize(
    'text', ['routing(64, 64)', 'routing(64, 64, causal=True)', 'routing(64, 64, local_heads=1, window=64)']
)
def test_no_array_is_as_large_as_all_pairs(text: str):
    """At 16,384 positions, the largest array of the forward and backward pass is the one of tokens by centroids."""
    assert largest_array(text, 16_384) <= 2 * 16_384 * 192


def test_tokens_are_taken_by_place_and_their_results_averaged():
    x = jnp.arange(10.0).reshape(1, 1, 5, 2)
    places = jnp.asarray([[[[4, 0], [1, 4]]]])
    taken = gather_tokens(x, places)
    np.testing.assert_array_equal(taken[0, 0], [[[8, 9], [0, 1]], [[2, 3], [8, 9]]])
    has_key = jnp.asarray([[[[True, True], [False, True]]]])
    back = average_over_clusters(taken + jnp.asarray([0.0, 1.0])[None, None, :, None, None], has_key, places, 5)
    np.testing.assert_array_equal(back[0, 0], [[0, 1], [3, 4], [0, 0], [0, 0], [8.5, 9.5]])
    shared = gather_tokens(jnp.arange(5)[None, None], jnp.broadcast_to(places, (1, 3, 2, 2)))
    np.testing.assert_array_equal(shared[0, 2], [[4, 0], [1, 4]])
