"""Sums over chunks: the form for CPUs, one chunk after another, equals the form for accelerators, all at once."""

import functools

import jax
import jax.numpy as jnp
import pytest

from efficient_attention.attention.favor.chunks import attend_causal, init_state
from efficient_attention.attention.favor.features import draw_features
from efficient_attention.attention.mechanism import FAVOR
from tests.tolerances import assert_close

RNG = jax.random.key(7)
jit = functools.partial(jax.jit, compiler_options={'xla_backend_optimization_level': 0})


@pytest.mark.parametrize('reads', ['earlier', 'earlier in segments', 'later'])
def test_chunks_at_once_equal_chunks_one_by_one(reads: str):
    q, k, v = (
        jax.random.normal(key, (2, 90, heads, 4))
        for key, heads in zip(jax.random.split(RNG, 3), (4, 2, 2), strict=True)
    )
    projection = draw_features(RNG, 8, 4, True)
    mechanism = FAVOR(features=8, causal=True, chunk=16)
    rows = None if reads == 'earlier' else jnp.asarray([[0] * 7 + [1] * 20 + [2] * 63, [1] * 50 + [3] * 40])
    options = {} if rows is None else {'valid_BL': rows != 0, 'segments_BL': rows, 'reads': reads.split()[0]}

    @functools.partial(jit, static_argnums=0)
    def results(parallel: bool) -> tuple:
        def run(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple:
            start = init_state(2, 2, 8, 4)
            if not options:
                start = attend_causal(q[:, :9], k[:, :9], v[:, :9], start, projection, mechanism)[1]
            (out, lse), state = attend_causal(q, k, v, start, projection, mechanism, **options, parallel=parallel)
            # Stabilisers may differ; means of values do not.
            return out, jnp.maximum(lse, -100.0), state.sums / jnp.maximum(state.normaliser, 1e-3)[..., None]

        outputs, backward = jax.vjp(run, q, k, v)
        return outputs, backward(jax.tree.map(jnp.cos, outputs))

    (one, one_gradients), (both, both_gradients) = results(False), results(True)
    assert_close(both, one)
    assert_close(both_gradients, one_gradients, gradient=True)
