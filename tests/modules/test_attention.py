"""The attention sub-layer against a plain NumPy computation, and its use of segments, positions and dropout."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from efficient_attention.modules.attention import SelfAttention
from efficient_attention.modules.config import LayerConfig
from tests.tolerances import assert_close

CONFIG = LayerConfig(width=16, heads=4, init_std=0.3, attention_dropout_rate=0.5)
X = jax.random.normal(jax.random.key(0), (2, 6, 16))
SEGMENTS = jnp.ones((2, 6), jnp.int32)
POSITIONS = jnp.tile(jnp.arange(6)[None], (2, 1))


def test_equals_a_loop_over_heads():
    module = SelfAttention(CONFIG, rngs=nnx.Rngs(1))
    out = module(X, SEGMENTS, POSITIONS)
    x = np.asarray(X, np.float64)
    q, k, v = (x @ np.asarray(layer.kernel[...], np.float64) for layer in (module.query, module.key, module.value))
    heads = []
    for head in range(4):
        part = slice(4 * head, 4 * head + 4)
        logits = q[..., part] @ k[..., part].swapaxes(1, 2) / 2.0
        weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        heads.append(weights @ v[..., part])
    np.testing.assert_allclose(
        out, np.concatenate(heads, -1) @ np.asarray(module.out.kernel[...], np.float64), atol=1e-4
    )


def test_rotary_attention_sees_distances_not_places():
    module = SelfAttention(LayerConfig(width=16, heads=4, rotary=True, init_std=0.3), rngs=nnx.Rngs(1))
    assert_close(module(X, SEGMENTS, POSITIONS), module(X, SEGMENTS, POSITIONS + 11))
    assert jnp.abs(module(X, SEGMENTS, POSITIONS) - module(X, SEGMENTS, POSITIONS * 2)).max() > 1e-3


def test_dropout_needs_a_key_and_follows_it():
    module = SelfAttention(CONFIG, rngs=nnx.Rngs(1))
    dropped = [module(X, SEGMENTS, POSITIONS, rng=jax.random.key(seed)) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(dropped[0], dropped[1])
    assert jnp.abs(dropped[0] - dropped[2]).max() > 1e-2
    assert jnp.abs(dropped[0] - module(X, SEGMENTS, POSITIONS)).max() > 1e-2


def test_segments_do_not_read_one_another():
    module = SelfAttention(CONFIG, rngs=nnx.Rngs(1))
    segments = jnp.asarray([[1, 1, 1, 2, 2, 0]] * 2)
    changed = X.at[:, 3:].add(1.0)
    np.testing.assert_array_equal(module(X, segments, POSITIONS)[:, :3], module(changed, segments, POSITIONS)[:, :3])
