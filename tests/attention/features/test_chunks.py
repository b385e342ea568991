"""Tests that positions are cut into chunks and joined again unchanged."""

import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.features.chunks import (
    FeatureAttentionInputs,
    cut_inputs,
    merge_chunks,
    split_mask_into_chunks,
)

B, L, H, G, K = 2, 7, 4, 2, 3


def test_joined_chunks_are_the_positions_and_a_query_stands_beside_its_key_head():
    query = jnp.arange(B * L * H * K, dtype=jnp.float32).reshape(B, L, H, K)
    chunks = cut_inputs(FeatureAttentionInputs(query, query[:, :, :G], query[:, :, G:]), 3)
    assert chunks.query_BGhCK.shape == (3, B, G, H // G, 3, K) and chunks.key_BGCK.shape == (3, B, G, 3, K)
    np.testing.assert_array_equal(merge_chunks(chunks.query_BGhCK, L), query)
    np.testing.assert_array_equal(chunks.query_BGhCK[1, 0, 1, 0, 2], query[0, 5, 2])
    np.testing.assert_array_equal(chunks.value_BGCK[1, 0, 1, 2], query[0, 5, 3])
    assert chunks.segments_BC is None and not chunks.valid_BC[2, :, 1:].any() and chunks.valid_BC.sum() == B * L


def test_there_is_no_mask_where_all_keys_are_valid_and_fill_the_chunks():
    assert split_mask_into_chunks(None, B, 6, 3) is None
    np.testing.assert_array_equal(split_mask_into_chunks(jnp.asarray([[True, False]]), 1, 2, 2), [[[True, False]]])
