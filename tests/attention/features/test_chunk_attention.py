"""A chunk's queries attend by one scale or pair by pair: the same outputs, with and without the sums before."""

import jax
import jax.numpy as jnp
import pytest

from efficient_attention.attention.features.chunk_attention import (
    ChunkKeys,
    attend_chunk,
    attend_chunk_exactly,
    up_to_query,
)
from efficient_attention.attention.features.key_sums import add_keys, no_keys, scale_keys
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
