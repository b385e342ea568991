"""Tests the sides of the GPU benchmark's attention: ours and JAX's compute the same function."""

import jax
import numpy as np
import pytest

from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.patterns.pattern import dense_mask
from scripts.benchmarks.gpu import attention as benchmark

pytestmark = pytest.mark.lenient_promotion  # jax.nn mixes types


@pytest.mark.parametrize('text', ['full', 'causal', 'causal & window(5)', 'sparse_strided(8)'])
def test_the_sides_compute_the_same(text: str):
    mechanism, arrays = parse_mechanism(text), benchmark.random_arrays(32)
    outputs = []
    for side in benchmark.SIDES:
        if side.make is not None and not {'cudnn', 'mosaic'} & set(side.name.replace(',', '').split()):
            call, masks = side.make(mechanism, 32)
            outputs.append(np.asarray(jax.jit(call)(*arrays, *masks), np.float32))
    assert len(outputs) == 2
    np.testing.assert_allclose(*outputs, atol=0.04)


def test_the_mask_of_a_peer_is_the_pattern_of_the_first_head():
    pattern = parse_mechanism('bigbird(4, 1)').pattern
    mask = np.asarray(benchmark.mask_of(pattern, 32))
    assert (mask[0, 0] == dense_mask(pattern, 32, 32, benchmark.HEADS)[0]).all()


def test_gradients_are_those_of_a_weighted_sum():
    q, k, v = benchmark.random_arrays(4)
    _, _, to_value = benchmark.with_gradients_of(lambda q, k, v: q + k + 2 * v)(q, k, v)
    weights = 2 * np.cos(np.arange(benchmark.HEAD_WIDTH))
    np.testing.assert_allclose(np.asarray(to_value, np.float32)[0, 0, 0], weights, rtol=0.01)


def test_pytorch_has_only_full_and_causal_attention():
    shape = (1, 8, 2, 8)
    with pytest.raises(NotImplementedError, match='only full and causal'):
        benchmark.torch_call(parse_mechanism('bigbird(4, 1)'), shape, with_gradients=False)
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        with pytest.raises(NotImplementedError, match='not installed: torch'):
            benchmark.torch_call(parse_mechanism('causal'), shape, with_gradients=True)


def test_the_operations_of_every_mechanism_are_counted():
    for text in benchmark.MECHANISMS:
        assert 0 < benchmark.multiply_adds(parse_mechanism(text), 1024, 8, 64) <= 2 * 8 * 64 * 1024**2, text
