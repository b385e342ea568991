"""A chunk's queries attend by one scale or pair by pair: the same outputs, with and without the sums before."""

import jax
import jax.numpy as jnp
import pytest

from efficient_attention.attention.features.chunk_attention import (
    ChunkKeys,
    attend_chunk,
    attend_chunk_exactly,
    find_readers,
    up_to_query,
)
from efficient_attention.attention.features.feature_map import LOWEST_LOG
from efficient_attention.attention.features.key_sums import add_keys, no_keys, scale_keys
from efficient_attention.attention.weights import MASKED
from tests.tolerances import assert_close


@pytest.mark.parametrize('is_open', [None, False])
def test_both_forms_are_the_formula(is_open: bool | None):
    before_logs, logs, values = jax.random.normal(jax.random.key(0), (3, 1, 2, 4, 3))
    query_logs = jax.random.normal(jax.random.key(1), (1, 2, 2, 4, 3))
    before, features = scale_keys(no_keys(1, 2, 3, 3), before_logs)
    before = add_keys(before, features, values)
    scaled, features = scale_keys(before, logs)
    keys = ChunkKeys(before, scaled, logs, features, values)
    reads = None if is_open is None else jnp.zeros((1, 1, 1, 4), bool)
    found = [attend(query_logs, keys, up_to_query(4), reads) for attend in (attend_chunk, attend_chunk_exactly)]
    weights = jnp.exp(query_logs[..., None, :] + jnp.concatenate([before_logs, logs], axis=2)[:, :, None, None]).sum(-1)
    reads_before = jnp.full((4, 4), is_open is None)
    weights = jnp.where(
        jnp.concatenate([reads_before, jnp.tril(jnp.ones((4, 4), bool))], axis=1)[None, None, None], weights, 0.0
    )
    total = weights.sum(axis=-1)
    mixed = jnp.einsum('BGhCc,BGcK->BGhCK', weights, jnp.concatenate([values, values], axis=2)) / total[..., None]
    for outputs in found:
        assert_close(outputs, (mixed, jnp.log(total)))


@pytest.mark.parametrize('is_open', [True, False])
def test_readers_have_a_feature_with_a_key(is_open: bool):
    """Of three features the keys before have the first, the chunk's second key the second, and none the third."""
    logs = jnp.full((1, 1, 3, 3), LOWEST_LOG)
    query_logs = logs.at[0, 0].set(jnp.where(jnp.eye(3, dtype=bool), 0.0, LOWEST_LOG))[:, :, None]
    values = jnp.ones((1, 1, 3, 2))
    before, features = scale_keys(no_keys(1, 1, 3, 2), logs.at[..., 0].set(-50.0))
    before, logs = add_keys(before, features, values), logs.at[0, 0, 1, 1].set(-80.0).at[0, 0, 2].set(MASKED)
    scaled, features = scale_keys(before, logs)
    keys = ChunkKeys(before, scaled, logs, features, values)
    out, lse = find_readers(query_logs, keys, up_to_query(3), jnp.full((1, 1, 1, 3), is_open))
    assert not out.any()
    assert (lse[0, 0, 0] == 0.0).tolist() == [is_open, True, False] and lse[0, 0, 0, 2] == MASKED
    _, lse = find_readers(query_logs[..., ::-1, :], keys, up_to_query(3), None)
    assert (lse[0, 0, 0] == 0.0).tolist() == [False, True, True]
