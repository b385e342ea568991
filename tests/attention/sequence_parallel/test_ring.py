"""Tests a ring of four devices that pass keys on: output and gradients equal those of all keys at once."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from efficient_attention.attention.dense_attention import masked_softmax
from efficient_attention.attention.sequence_parallel.ring import RingExchange, attend_ring, merge_results_of_devices
from efficient_attention.attention.sequence_parallel.ring_steps import make_ring_steps
from tests.tolerances import assert_close

COUNT, SHARE = 4, 3
KEYS = PartitionSpec(None, 'sequence')


def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((COUNT,), ('sequence',), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])


def inputs() -> list[jax.Array]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal((2, COUNT * SHARE, 2, 4)), jnp.float32) for _ in range(4)]


def attend(_: Any, query: jax.Array, keys: Any, labels: jax.Array, fixed: None) -> tuple[jax.Array, jax.Array]:
    """Computes attention of all queries to the keys whose label is 1."""
    del fixed
    logits = jnp.einsum('blhk,bmhk->bhlm', query, keys[0])
    weights, lse = masked_softmax(logits, (labels == 1)[:, None, None])
    return jnp.einsum('bhlm,bmhk->blhk', weights, keys[1]), lse


def both_ways(compute: Any) -> Any:
    """Returns a function that computes output, log-sum-exp and the gradients through both."""

    def loss(query: Any, key: Any, value: Any, labels: Any, weight: Any) -> Any:
        out, lse = compute(query, (key, value), labels)
        return (out * weight).sum() + (jnp.where(lse > -1e30, lse, 0.0) * weight[..., 0].swapaxes(1, 2)).sum(), lse

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))


def test_a_row_reads_the_keys_of_all_devices():
    query, key, value, weight = inputs()
    labels = jnp.asarray([[1, 0, 1] * COUNT, [0] * COUNT * SHARE])  # The second row reads nothing.
    ring = RingExchange('sequence', make_ring_steps(COUNT, lambda *_: 'all'), attend)
    split = jax.shard_map(
        lambda query, keys, labels: attend_ring(ring, query, keys, labels, None),
        mesh=mesh(), in_specs=KEYS, out_specs=(KEYS, PartitionSpec(None, None, 'sequence')), check_vma=False,
    )  # fmt: skip
    arguments = query, key, value, labels, weight
    expected = both_ways(lambda query, keys, labels: attend(None, query, keys, labels, None))(*arguments)
    assert_close(both_ways(split)(*arguments), expected)


def test_devices_merge_parts_over_their_own_keys():
    query, key, value, _ = inputs()
    labels = jnp.ones(key.shape[:2], jnp.int32)

    def parts(keys: Any, labels: Any) -> Any:
        return merge_results_of_devices('sequence', attend(None, query, keys, labels, None))

    merged = jax.shard_map(parts, mesh=mesh(), in_specs=KEYS, out_specs=PartitionSpec(), check_vma=False)
    expected = attend(None, query, (key, value), labels, None)
    assert_close(jax.jit(merged)((key, value), labels), expected)


def test_one_exchange_is_under_way_at_a_time():
    """Each exchange after the first waits for the computation before it, so that no device collects all keys."""
    query, key, value, _ = inputs()
    ring = RingExchange('sequence', make_ring_steps(COUNT, lambda *_: 'all'), attend)
    split = jax.shard_map(
        functools.partial(attend_ring, ring), mesh=mesh(), in_specs=(KEYS, KEYS, KEYS, PartitionSpec()),
        out_specs=(KEYS, PartitionSpec(None, None, 'sequence')), check_vma=False,
    )  # fmt: skip
    text = jax.jit(split).lower(query, (key, value), jnp.ones(key.shape[:2], jnp.int32), None).as_text()
    assert text.count('optimization_barrier') == COUNT - 1
    assert text.count('collective_permute') == 3 * (COUNT - 1)
