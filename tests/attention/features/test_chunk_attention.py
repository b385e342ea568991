"""Tests that a chunk's queries give the same outputs by one common scale or pair by pair, with and without earlier
sums.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.features.chunk_attention import (
    ChunkKeys,
    attend_chunk,
    attend_chunk_exactly,
    causal_chunk_mask,
    find_queries_with_features,
)
from efficient_attention.attention.features.feature_map import LOWEST_LOG
from efficient_attention.attention.features.key_sums import add_keys, bring_to_common_scale, zero_key_sums
from tests.attention.cells import quick
from tests.tolerances import assert_close


@pytest.mark.parametrize('is_open', [None, False])
def test_both_forms_are_the_formula(is_open: bool | None):
    rng = np.random.default_rng(0)
    arrays = [x.astype(np.float32) for x in rng.normal(size=(3, 1, 2, 4, 3))]
    query_logs = rng.normal(size=(1, 2, 2, 4, 3)).astype(np.float32)

    @quick
    def both_ways(query_logs: jax.Array, before_logs: jax.Array, logs: jax.Array, values: jax.Array) -> list:
        before, features = bring_to_common_scale(zero_key_sums(1, 2, 3, 3), before_logs)
        before = add_keys(before, features, values)
        scaled, features = bring_to_common_scale(before, logs)
        keys = ChunkKeys(before, scaled, logs, features, values)
        reads = None if is_open is None else jnp.zeros((1, 1, 1, 4), bool)
        return [
            attend(query_logs, keys, causal_chunk_mask(4), reads) for attend in (attend_chunk, attend_chunk_exactly)
        ]

    before_logs, logs, values = arrays
    weights = np.exp(query_logs[..., None, :] + np.concatenate([before_logs, logs], axis=2)[:, :, None, None]).sum(-1)
    allowed = np.concatenate([np.full((4, 4), is_open is None), np.tri(4, dtype=bool)], axis=1)
    weights = np.where(allowed, weights, 0.0)
    total = weights.sum(axis=-1)
    mixed = np.einsum('BGhCc,BGcK->BGhCK', weights, np.concatenate([values, values], axis=2)) / total[..., None]
    for outputs in both_ways(query_logs, *arrays):
        assert_close(outputs, (mixed, np.log(total)))


@pytest.mark.parametrize('is_open', [True, False])
def test_readers_have_a_feature_with_a_key(is_open: bool):
    """Of three features, earlier keys have the first, the chunk's second key has the second, and no key has the
    third.
    """
    lowest = np.full((1, 1, 3, 3), LOWEST_LOG, np.float32)
    query_logs, before_logs, logs = (lowest.copy() for _ in range(3))
    query_logs[0, 0, np.arange(3), np.arange(3)] = 0.0
    before_logs[..., 0] = -50.0
    logs[0, 0, 1, 1], logs[0, 0, 2] = -80.0, MASKED

    @quick
    def readers(query_logs: jax.Array, before_logs: jax.Array, logs: jax.Array) -> tuple:
        values = jnp.ones((1, 1, 3, 2))
        before, features = bring_to_common_scale(zero_key_sums(1, 1, 3, 2), before_logs)
        before = add_keys(before, features, values)
        scaled, features = bring_to_common_scale(before, logs)
        keys, query_logs = ChunkKeys(before, scaled, logs, features, values), query_logs[:, :, None]
        found = find_queries_with_features(query_logs, keys, causal_chunk_mask(3), jnp.full((1, 1, 1, 3), is_open))
        return *found, find_queries_with_features(query_logs[..., ::-1, :], keys, causal_chunk_mask(3), None)[1]

    out, lse, other_lse = jax.device_get(readers(query_logs, before_logs, logs))
    assert not out.any()
    assert (lse[0, 0, 0] == 0.0).tolist() == [is_open, True, False] and lse[0, 0, 0, 2] == MASKED
    assert (other_lse[0, 0, 0] == 0.0).tolist() == [False, True, True]
