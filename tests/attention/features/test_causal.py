"""Tests that causal sums computed chunk by chunk, as on CPUs, equal those computed all at once, as on accelerators."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.devices import using_device_tuning
from efficient_attention.attention.favor.random_features import log_softmax_features
from efficient_attention.attention.features import causal
from efficient_attention.attention.features.causal import attend_causal
from efficient_attention.attention.features.chunks import FeatureAttentionInputs
from efficient_attention.attention.features.feature_map import LOWEST_LOG, FeatureMap
from efficient_attention.attention.features.key_sums import zero_key_sums
from tests.tolerances import assert_close

jit = functools.partial(jax.jit, compiler_options={'xla_backend_optimization_level': 0})


@pytest.mark.parametrize('reads', ['earlier', 'earlier in segments', 'later'])
def test_chunks_at_once_equal_chunks_one_by_one(reads: str):
    rng = np.random.default_rng(7)
    q, k, v = (rng.normal(size=(2, 90, heads, 4)).astype(np.float32) for heads in (4, 2, 2))
    features = FeatureMap(log_softmax_features, jnp.asarray(rng.normal(size=(8, 4)), jnp.float32))
    rows = None if reads == 'earlier' else jnp.asarray([[0] * 7 + [1] * 20 + [2] * 63, [1] * 50 + [3] * 40])
    of_rows = () if rows is None else (rows != 0, rows)

    def results(*inputs: jax.Array) -> tuple:
        def run(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple:
            start = zero_key_sums(2, 2, 8, 4)
            if rows is None:
                start = attend_causal(FeatureAttentionInputs(q[:, :9], k[:, :9], v[:, :9]), start, features, 16)[1]
            inputs, kind = FeatureAttentionInputs(q, k, v, *of_rows), reads.split()[0]
            (out, lse), sums = attend_causal(inputs, start, features, 16, reads=kind)
            # The scales of the sums may differ, but the means of values may not.
            return out, jnp.maximum(lse, -100.0), sums.sums_BGRK / jnp.maximum(sums.normaliser_BGR, 1e-3)[..., None]

        outputs, backward = jax.vjp(run, *inputs)
        return outputs, backward(jax.tree.map(jnp.cos, outputs))

    @jit
    def both_ways(*inputs: jax.Array) -> list:
        found = []
        for at_once in (False, True):
            with using_device_tuning(feature_prefix_sums=at_once):
                found.append(results(*inputs))
        return found

    (one, one_gradients), (both, both_gradients) = both_ways(q, k, v)
    assert_close(both, one)
    assert_close(both_gradients, one_gradients, gradient=True)


@pytest.mark.parametrize('at_once', [False, True])
@pytest.mark.parametrize('rows', [None, [[1, 1, 1, 1, 2, 2]]])
def test_only_a_query_that_is_lost_to_the_scale_is_computed_pair_by_pair(
    rows: list | None, at_once: bool, monkeypatch: pytest.MonkeyPatch
):
    """Only queries that one common scale cannot express are computed pair by pair.

    A query whose features are zero for all its keys reads nothing and costs nothing.
    """

    def none(logs: jax.Array, keys: causal.ChunkKeys, *_) -> causal.Outputs:
        return jnp.full((*logs.shape[:-1], keys.value_BGcK.shape[-1]), jnp.nan), jnp.zeros(logs.shape[:-1])

    monkeypatch.setattr(causal, 'attend_chunk_exactly', none)
    features = FeatureMap(lambda x, _: x, has_zeros=True)
    of_rows = (None, None) if rows is None else (jnp.ones((1, 6), bool), jnp.asarray(rows))

    @jit
    def run(query_logs: jax.Array, key_logs: jax.Array) -> causal.Outputs:
        values = jnp.ones((1, 6, 1, 2))
        inputs = FeatureAttentionInputs(query_logs[None, :, None], key_logs[None, :, None], values, *of_rows)
        with using_device_tuning(feature_prefix_sums=at_once):
            return attend_causal(inputs, zero_key_sums(1, 1, 2, 2), features, 3)[0]

    apart = np.tile(np.float32([[0.0, LOWEST_LOG]]), (6, 1))
    key_logs = apart.copy()
    key_logs[5, 1] = 0.0
    out, lse = jax.device_get(run(apart[:, ::-1], key_logs))
    assert not out[0, :5].any() and (lse[0, :5] == MASKED).all()
    assert_close(out[0, 5], np.ones((1, 2)))
    key_logs[1, 0] = 200.0  # This key makes the preceding query impossible to express with the common scale.
    out, _ = run(apart, key_logs)
    assert np.isnan(out).all()


@pytest.mark.parametrize('at_once', [False, True])
def test_pairs_give_the_results_of_a_scale_of_their_own(at_once: bool):
    """The last key of a chunk is too large for the common scale. Shorter chunks express every pair."""
    features = FeatureMap(lambda x, _: x)
    rng = np.random.default_rng(4)
    q, k, v = (rng.normal(size=(1, 6, 1, 2)).astype(np.float32) for _ in range(3))
    k[0, 5] = 200.0

    @jit
    def both(q: jax.Array, k: jax.Array, v: jax.Array) -> list:
        found = []
        with using_device_tuning(feature_prefix_sums=at_once):
            for size in (6, 1):

                def run(q: jax.Array, k: jax.Array, v: jax.Array, size: int = size) -> jax.Array:
                    start = zero_key_sums(1, 1, 2, 2)
                    return attend_causal(FeatureAttentionInputs(q, k, v), start, features, size)[0][0]

                out, backward = jax.vjp(run, q, k, v)
                found.append((out, backward(jnp.cos(out))))
        return found

    (ours, gradients), (expected, expected_gradients) = both(q, k, v)
    assert_close(ours, expected)
    assert_close(gradients, expected_gradients, gradient=True)


def test_unused_queries_start_no_second_computation(monkeypatch: pytest.MonkeyPatch):
    """Padding queries of cosFormer have no feature, and would otherwise start a search for lost queries."""

    def none(logs: jax.Array, keys: causal.ChunkKeys, *_) -> causal.Outputs:
        return jnp.full((*logs.shape[:-1], keys.value_BGcK.shape[-1]), jnp.nan), jnp.zeros(logs.shape[:-1])

    monkeypatch.setattr(causal, 'attend_chunk_exactly', none)
    monkeypatch.setattr(causal, 'find_queries_with_features', none)
    features = FeatureMap(lambda x, _: x, has_zeros=True)
    logs = np.zeros((1, 6, 1, 2), np.float32)
    logs[0, 4:] = LOWEST_LOG
    valid_BL = np.arange(6)[None] < 4

    @jit
    def run(logs: jax.Array, used_BL: jax.Array) -> jax.Array:
        keys, values = jnp.zeros_like(logs), jnp.ones_like(logs)
        inputs = FeatureAttentionInputs(logs, keys, values, jnp.asarray(valid_BL), None, used_BL)
        return attend_causal(inputs, zero_key_sums(1, 1, 2, 2), features, 3)[0][0]

    assert_close(run(logs, valid_BL)[0, :4], np.ones((4, 1, 2)))
    assert np.isnan(run(logs, np.ones_like(valid_BL))).all()
