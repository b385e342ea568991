"""Tests that forward and backward passes lower for GPUs and TPUs on a machine that has neither."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from efficient_attention.attention.attend import attend
from efficient_attention.attention.devices import using_platform
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.parsing import parse_mechanism

SHAPE = (1, 256, 2, 64)
PLATFORMS = ('cuda', 'tpu')
# Mechanism, dtype and additions to a call: segments, attention dropout, a bias as an array or function of positions.
CASES = [
    ('full', 'float32', ''),
    ('full', 'bfloat16', 'segments dropout bias'),
    ('causal & window(20)', 'float32', 'segments dropout function'),
    ('bigbird(64, 1)', 'bfloat16', 'segments dropout bias'),
    ('lsh(64, 2)', 'float32', 'segments dropout'),
    ('lsh(64, 2, causal=True)', 'bfloat16', ''),
    ('favor(64)', 'bfloat16', 'segments'),
    ('favor(64, causal=True)', 'float32', ''),
    ('linear(causal=True)', 'float32', 'segments'),
]


def distance(query: Any, key: Any) -> jax.Array:
    """Computes a bias that falls with distance."""
    return -0.1 * abs(query - key).astype(jnp.float32)


def exported(mechanism: Mechanism, dtype: str, option: str, platform: str) -> export.Exported:
    """Returns the program for output and gradients of q, k and v on another platform."""
    segments = jax.device_put(np.repeat(np.array([1, 2, 0], np.int32), [100, 140, 16])[None])
    has_bias, has_segments = 'bias' in option, 'segments' in option

    def attended(q: jax.Array, k: jax.Array, v: jax.Array, rng: jax.Array) -> jax.Array:
        return attend(
            q,
            q if mechanism.requirements.shared_qk else k,
            v,
            mechanism,
            bias=jnp.ones((1, 2, 256, 256)) if has_bias else distance if 'function' in option else None,
            query_segments=segments if has_segments else None,
            key_segments=segments if has_segments else None,
            dropout_rate=0.1 if 'dropout' in option else 0.0,
            rng=rng,
            backend='blocked',
        )

    def both(*arguments: jax.Array) -> Any:
        out, pull = jax.vjp(lambda *qkv: attended(*qkv, arguments[3]), *arguments[:3])
        return out, pull(out)

    array = jax.ShapeDtypeStruct(SHAPE, dtype)
    rng = jax.eval_shape(lambda: jax.random.key(0))
    return export.export(jax.jit(both), platforms=[platform])(array, array, array, rng)


@pytest.mark.parametrize('platform', PLATFORMS)
@pytest.mark.parametrize('text, dtype, option', CASES)
def test_forward_and_backward_lower(text: str, dtype: str, option: str, platform: str):
    """Export fails for operations without a rule for the platform, and for calls into code that only a CPU's jaxlib
    has.
    """
    with using_platform(platform):  # The platform decides the sizes of chunks.
        program = exported(parse_mechanism(text), dtype, option, platform)
    assert program.platforms == (platform,)
    assert [(out.shape, out.dtype.name) for out in program.out_avals] == [(SHAPE, dtype)] * 4


def test_a_platform_has_chunks_of_its_own():
    """Without this the tests above would lower the program of a CPU."""
    mechanism = parse_mechanism('favor(64, causal=True)')
    here = exported(mechanism, 'float32', '', 'tpu').mlir_module()
    with using_platform('tpu'):
        assert exported(mechanism, 'float32', '', 'tpu').mlir_module() != here


def test_what_a_platform_lacks_is_refused():
    """Tests the check on which the tests above rely."""
    square = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    with pytest.raises(NotImplementedError, match='schur.*tpu'):
        export.export(jax.jit(jax.scipy.linalg.schur), platforms=['tpu'])(square)
