"""Tests causal linear attention of all chunks at once: rounded inputs, later keys, and chunks without keys."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.devices import using_device_tuning
from efficient_attention.attention.favor.random_features import draw_features, log_softmax_features
from efficient_attention.attention.features.causal import attend_causal
from efficient_attention.attention.features.chunks import FeatureAttentionInputs
from efficient_attention.attention.features.feature_map import FeatureMap
from efficient_attention.attention.features.key_sums import zero_key_sums
from efficient_attention.attention.linear.definition import ELU
from tests.tolerances import assert_close

jit = functools.partial(jax.jit, compiler_options={'xla_backend_optimization_level': 0})
FAVOR = FeatureMap(log_softmax_features, draw_features(jax.random.key(3), 32, 16, True))


def attend(features: FeatureMap, inputs: FeatureAttentionInputs, at_once: bool = True) -> jax.Array:
    batch, _, heads, width = inputs.key_BLGK.shape
    start = zero_key_sums(batch, heads, features.feature_count(width), inputs.value_BLGK.shape[-1])
    with using_device_tuning(feature_prefix_sums=at_once):
        return attend_causal(inputs, start, features, 16)[0][0]


@pytest.mark.parametrize('features', [ELU, FAVOR], ids=['elu', 'favor'])
def test_bfloat16_inputs_give_the_float32_results_of_the_same_numbers(features: FeatureMap):
    rng = np.random.default_rng(5)
    q, k, v = (jnp.asarray(rng.normal(size=(2, 70, heads, 16)), jnp.bfloat16) for heads in (4, 2, 2))
    dout = jnp.asarray(rng.normal(size=q.shape), jnp.float32)
    valid_BL = jnp.arange(70)[None] < jnp.asarray([[70], [55]])

    @jit
    def results(q: jax.Array, k: jax.Array, v: jax.Array) -> list:
        found = []
        for at_once, dtype in ((True, jnp.bfloat16), (False, jnp.float32)):
            inputs = [x.astype(dtype) for x in (q, k, v)]
            run = functools.partial(attend, features, at_once=at_once)
            out, backward = jax.vjp(lambda *x, run=run: run(FeatureAttentionInputs(*x, valid_BL)), *inputs)
            found.append((out, [x.astype(jnp.float32) for x in backward(dout)]))
        return found

    (rounded, rounded_gradients), (exact, exact_gradients) = results(q, k, v)
    assert_close(rounded, exact, dtype='bfloat16')
    assert_close(rounded_gradients, exact_gradients, dtype='bfloat16', gradient=True)


@pytest.mark.parametrize('features', [ELU, FAVOR], ids=['elu', 'favor'])
def test_float16_inputs_are_computed_in_float32(features: FeatureMap):
    """Sums of values exceed 65,504, and gradients divided by denominators fall below the normal numbers of float16."""
    rng = np.random.default_rng(9)
    q, k = (jnp.asarray(rng.normal(size=(1, 70, 1, 16)), jnp.float16) for _ in range(2))
    v = jnp.asarray(8_000.0 * (1.0 + 0.3 * rng.normal(size=q.shape)), jnp.float16)
    dout = jnp.asarray(1e-4 * rng.normal(size=q.shape), jnp.float32)

    @jit
    def results(q: jax.Array, k: jax.Array, v: jax.Array) -> list:
        found = []
        for dtype in (jnp.float16, jnp.float32):
            inputs = [x.astype(dtype) for x in (q, k, v)]
            out, backward = jax.vjp(lambda *x: attend(features, FeatureAttentionInputs(*x)), *inputs)
            found.append((out, [x.astype(jnp.float32) for x in backward(dout)]))
        return found

    (out, gradients), (expected, expected_gradients) = jax.device_get(results(q, k, v))
    assert_close(out, expected)
    largest = [np.abs(x).max() for x in expected_gradients]
    ours, theirs = ([x / scale for x, scale in zip(g, largest, strict=True)] for g in (gradients, expected_gradients))
    assert_close(ours, theirs, dtype='float16', gradient=True)


def test_later_keys_change_no_earlier_output():
    """The later keys have features that are e^300 times as large."""
    rng = np.random.default_rng(6)
    q, k, v = (jnp.asarray(rng.normal(size=(1, 64, 1, 4)), jnp.float32) for _ in range(3))
    features = FeatureMap(lambda x, _: x)
    run = jit(lambda k: attend(features, FeatureAttentionInputs(q, k, v)))
    np.testing.assert_array_equal(run(k)[:, :32], run(k.at[:, 32:].add(300.0))[:, :32])


def test_queries_before_the_first_valid_key_read_nothing():
    rng = np.random.default_rng(8)
    q, k, v = (jnp.asarray(rng.normal(size=(1, 48, 1, 16)), jnp.float32) for _ in range(3))
    valid_BL = jnp.arange(48)[None] >= 20

    @jit
    def run(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, tuple]:
        out, backward = jax.vjp(lambda *x: attend(FAVOR, FeatureAttentionInputs(*x, valid_BL)), q, k, v)
        return out, backward(jnp.ones_like(out))

    out, gradients = run(q, k, v)
    assert not out[:, :20].any() and out[:, 20:].any()
    assert all(jnp.isfinite(x).all() and not x[:, :20].any() for x in gradients)
