"""Tests the compiled program of FAVOR+: its memory is linear in the length, and it has no scatter operation."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.favor import fast_attention as favor
from efficient_attention.attention.favor.definition import FAVOR
from tests.attention.favor.test_fast_attention import RNG, drawn_once, jit  # noqa: F401  a fixture among them
from tests.attention.requests import make_request


@functools.cache
def compiled_gradient(length: int, causal: bool, has_segments: bool) -> jax.stages.Compiled:
    """Compiles the forward and backward pass of one head of width 16 with 32 features."""
    array = jax.ShapeDtypeStruct((1, length, 1, 16), jnp.float32)

    def total(q: jax.Array, k: jax.Array, v: jax.Array, rows: jax.Array) -> jax.Array:
        extra = {'query_segments': rows, 'key_segments': rows} if has_segments else {}
        return favor.compute_attention(make_request(q, k, v, FAVOR(32, causal), rng=RNG, **extra))[0].sum()

    rows = jax.ShapeDtypeStruct((1, length), jnp.int32)
    return jit(jax.grad(total, (0, 1, 2))).lower(array, array, array, rows).compile()


@pytest.mark.parametrize('causal, has_segments', [(False, False), (True, False), (True, True)])
def test_memory_is_linear_in_the_length(causal: bool, has_segments: bool):
    programs = [compiled_gradient(length, causal, has_segments) for length in (4096, 16384)]
    small, large = (program.memory_analysis().temp_size_in_bytes for program in programs)
    assert large <= 2.2**2 * small
    shapes = [
        np.prod([int(n) for n in dims.split(',')]) for dims in re.findall(r'\[([\d,]+)\]', programs[-1].as_text())
    ]
    assert max(shapes) < 16384 * 32 * 16 / 4  # The bound is far below [L, R, K] and [L, L].


def test_sorting_by_segment_has_no_scatter_in_its_gradient():
    assert 'scatter(' not in compiled_gradient(4096, True, True).as_text()
