"""Tests that LSH attention on the emulated kernels of `mosaic` equals its definition, and what it lacks there."""

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend
from efficient_attention.attention.choice_log import log_choice
from efficient_attention.attention.devices import using_platform
from efficient_attention.attention.lsh.definition import layout_from_request
from efficient_attention.attention.lsh.kernel_rounds import attend_rounds, check_supported
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.request import with_padding_zeroed
from tests.attention.abstract_gpu import on_abstract_gpu
from tests.attention.cells import quick
from tests.attention.emulation import emulating_kernels
from tests.attention.requests import make_request
from tests.tolerances import assert_close

KEY = jax.random.key(5)
# Rows with texts of several lengths, one of them a single token, and padding.
PACKED = np.array([[1] * 40 + [2] + [3] * 25 + [0] * 9], np.int32)
IDS = {'query_segments': jnp.asarray(PACKED), 'key_segments': jnp.asarray(PACKED)}
DROPPED = {'dropout_rate': 0.3, 'dropout_rng': jax.random.key(1)}


@pytest.mark.fast
@pytest.mark.parametrize(
    'text, given', [('lsh(16, 2, causal=True)', IDS | DROPPED), ('lsh(16, 1, within_buckets=True)', {})]
)
def test_the_kernels_equal_the_definition(text: str, given: dict[str, Any]):
    """Some tokens read only themselves. Each round has 75 tokens in five chunks of 16, so the last one is padded."""
    rng = np.random.default_rng(0)
    q, v = (rng.normal(size=(1, 75, 1, 16)).astype(jnp.bfloat16) for _ in range(2))
    weights = np.cos(np.arange(q.size, dtype=np.float32)).reshape(q.shape)
    mechanism = parse_mechanism(text)

    def on_kernels(q: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        request = with_padding_zeroed(make_request(q, q, v, mechanism, rng=KEY, **given))
        return attend_rounds(request, layout_from_request(request), is_interpreted=True)

    def defined(q: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        return attend(q, q, v, mechanism, backend='reference', return_lse=True, rng=KEY, **given)

    def loss(q: jax.Array, v: jax.Array, form: Any) -> tuple:
        out, lse = form(q, v)
        of_others = jnp.where(lse > -9e4, lse, 0.0)  # without tokens that read only themselves
        return (out.astype(jnp.float32) * weights).sum() + jnp.sin(of_others).sum(), (out, lse)

    @quick
    def run(q: jax.Array, v: jax.Array) -> list[tuple]:
        return [jax.grad(loss, (0, 1), has_aux=True)(q, v, form) for form in (on_kernels, defined)]

    with emulating_kernels():
        (gradients, outs), (expected_gradients, expected) = jax.device_get(run(q, v))
    assert_close(outs, expected, dtype='bfloat16')
    assert_close(gradients, expected_gradients, dtype='bfloat16', gradient=True)


def test_forward_and_backward_lower_to_kernels():
    def loss(q: jax.Array) -> jax.Array:
        out, lse = attend(q, q, q, parse_mechanism('lsh(64, 2)'), rng=KEY, return_lse=True, **DROPPED)
        return out.astype(jnp.float32).sum() + lse.sum()

    q = jax.ShapeDtypeStruct((1, 300, 2, 64), jnp.bfloat16)
    with using_platform('cuda', 1, 'NVIDIA H200'), on_abstract_gpu():
        program = jax.jit(jax.grad(loss)).trace(q).lower(lowering_platforms=('cuda',)).as_text()
    assert all(f'block_sparse_attention{name}_mosaic_gpu' in program for name in ('', '_dq', '_dkv'))


@pytest.mark.parametrize(
    'text, changes, line',
    [
        ('lsh(16, 2, deduplicate=True)', {}, '^mosaic has no support for a pair counted once$'),
        ('lsh(16, sequential=True)', {}, '^mosaic has no rounds computed one after another$'),
        ('lsh(24)', {}, '^mosaic has no chunks of 24 positions$'),
        (
            'lsh(16, causal=True)',
            dict.fromkeys(('query_positions', 'key_positions'), np.arange(1, 301, dtype=np.int32)[None]),
            '^mosaic has no support for positions other than 0, 1, ...$',
        ),
    ],
)
def test_what_it_lacks_is_named(text: str, changes: dict, line: str):
    q = jnp.ones((1, 300, 1, 16), jnp.bfloat16)
    request = make_request(q, q, q, parse_mechanism(text), rng=KEY, **changes)
    with using_platform('cuda', 1, 'NVIDIA H200'), pytest.raises(NotImplementedError, match=line):
        check_supported(request, layout_from_request(request))


@pytest.mark.parametrize(
    'dtype, chip, line',
    [
        ('bfloat16', 'NVIDIA H200', 'mosaic over lsh'),
        ('float32', 'NVIDIA H200', 'blocked over lsh (mosaic has no inputs of type float32)'),
        ('bfloat16', 'NVIDIA B200', 'blocked over lsh (mosaic has no NVIDIA Hopper GPU on this machine)'),
    ],
)
def test_auto_says_what_it_chose(dtype: str, chip: str, line: str, caplog: pytest.LogCaptureFixture):
    log_choice.cache_clear()
    q = jax.ShapeDtypeStruct((1, 300, 1, 16), dtype)
    with caplog.at_level(logging.INFO), using_platform('cuda', 1, chip), on_abstract_gpu():
        jax.eval_shape(lambda q: attend(q, q, q, parse_mechanism('lsh(16, 2)'), rng=KEY), q)
    assert [record.message for record in caplog.records] == [f'attention: {line}']
