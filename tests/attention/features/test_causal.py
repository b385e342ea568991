"""Sums over chunks: the form for CPUs, one chunk after another, equals the form for accelerators, all at once."""

import functools

import jax
import jax.numpy as jnp
import pytest

from efficient_attention.attention.device_forms import using_forms
from efficient_attention.attention.favor.random_features import draw_features, log_softmax_features
from efficient_attention.attention.features.causal import attend_causal
from efficient_attention.attention.features.chunks import Inputs
from efficient_attention.attention.features.feature_map import FeatureMap
from efficient_attention.attention.features.key_sums import no_keys
from tests.tolerances import assert_close

RNG = jax.random.key(7)
jit = functools.partial(jax.jit, compiler_options={'xla_backend_optimization_level': 0})


@pytest.mark.parametrize('reads', ['earlier', 'earlier in segments', 'later'])
def test_chunks_at_once_equal_chunks_one_by_one(reads: str):
    q, k, v = (
        jax.random.normal(key, (2, 90, heads, 4))
        for key, heads in zip(jax.random.split(RNG, 3), (4, 2, 2), strict=True)
    )
    features = FeatureMap(log_softmax_features, draw_features(RNG, 8, 4, True))
    rows = None if reads == 'earlier' else jnp.asarray([[0] * 7 + [1] * 20 + [2] * 63, [1] * 50 + [3] * 40])
    of_rows = () if rows is None else (rows != 0, rows)

    @jit
    def results() -> tuple:
        def run(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple:
            start = no_keys(2, 2, 8, 4)
            if rows is None:
                start = attend_causal(Inputs(q[:, :9], k[:, :9], v[:, :9]), start, features, 16)[1]
            inputs, kind = Inputs(q, k, v, *of_rows), reads.split()[0]
            (out, lse), sums = attend_causal(inputs, start, features, 16, reads=kind)
            # Stabilisers may differ; means of values do not.
            return out, jnp.maximum(lse, -100.0), sums.sums_BGRK / jnp.maximum(sums.normaliser_BGR, 1e-3)[..., None]

        outputs, backward = jax.vjp(run, q, k, v)
        return outputs, backward(jax.tree.map(jnp.cos, outputs))

    with using_forms(feature_prefix_sums=False):
        one, one_gradients = results()
    with using_forms(feature_prefix_sums=True):
        both, both_gradients = results()
    assert_close(both, one)
    assert_close(both_gradients, one_gradients, gradient=True)
