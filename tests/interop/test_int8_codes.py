"""Tests that integer codes with scales, and arrays stored as bits of their non-zero entries, restore the parameters."""

import numpy as np
import pytest

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.int8_codes import (
    PackedSparseArrays,
    dequantize_params,
    flatten_by_path,
    packed,
    quantization_errors,
    quantize_params,
    unflatten_paths,
    unpacked,
)

MODEL = ModelConfig(
    vocab_size=9, width=8, heads=2, layers=2, max_length=4, quantization='int8', float_layers=('position',)
)


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {f'encoder/stack/layers/attention/{name}/kernel': (2, 8, 8) for name in ('key', 'out', 'query', 'value')}
    shapes |= {'encoder/stack/layers/feed_forward/up/kernel': (2, 8, 32)}
    shapes |= {'encoder/stack/layers/feed_forward/down/kernel': (2, 32, 8), 'encoder/stack/layers/norm/scale': (2, 8)}
    shapes |= {f'encoder/embeddings/{name}/embedding': (4, 8) for name in ('position', 'token_type')}
    shapes |= {'encoder/embeddings/token/embedding': (9, 8)}
    return {path: rng.normal(size=shape).astype(np.float32) for path, shape in shapes.items()}


def test_rounded_parameters_become_codes_and_come_back():
    flat = arrays()
    codes = quantize_params(flat, MODEL, HeadConfig())
    query = 'encoder/stack/layers/attention/query/kernel'
    assert codes[query].dtype == np.int8 and codes[f'{query}_scale'].shape == (2, 1, 8)
    assert codes['encoder/embeddings/token/embedding_scale'].shape == (9, 1)
    assert codes['encoder/embeddings/position/embedding'].dtype == np.float32
    back = dequantize_params(codes)
    assert set(back) == set(flat)
    for path, array in flat.items():
        np.testing.assert_allclose(back[path], array, atol=np.abs(array).max() / 127.5 / 2 + 1e-6)
    errors = quantization_errors(flat, MODEL, HeadConfig())
    assert set(errors) >= {f'{query} of layer 1', f'{query} of layer 2', 'encoder/embeddings/token/embedding'}
    assert all(0.001 < error < 0.02 for error in errors.values())


def test_codes_without_a_scale_that_fits_are_one_line():
    codes = quantize_params(arrays(), MODEL, HeadConfig())
    key = 'encoder/stack/layers/attention/key/kernel'
    with pytest.raises(InputError, match=f'{key} is int8 and has no scale'):
        dequantize_params({path: array for path, array in codes.items() if path != f'{key}_scale'})
    with pytest.raises(InputError, match=r'has a scale of shape \[8\], not \[2, 1, 8\]'):
        dequantize_params(codes | {f'{key}_scale': np.ones(8, np.float32)})


@pytest.mark.parametrize('dtype', [np.float32, np.int8])
def test_many_zeros_are_stored_as_bits(dtype: type):
    rng = np.random.default_rng(0)
    sparse = (rng.normal(size=(3, 40, 50)) * 20).astype(dtype)
    sparse[rng.random(sparse.shape) < 0.97] = 0
    flat = {'a/sparse': sparse, 'a/dense': rng.normal(size=(3, 4)).astype(np.float32)}
    stored = packed(flat)
    assert set(stored.tensors) == {'a/sparse.bits', 'a/sparse.values', 'a/dense'}
    size = sum(array.nbytes for array in stored.tensors.values())
    assert size < (1 / 32 + 0.035 if dtype is np.float32 else 1 / 8 + 0.035) * sparse.nbytes + 100
    back = unpacked(stored)
    for path, array in flat.items():
        np.testing.assert_array_equal(back[path], array)
        assert back[path].dtype == array.dtype
    for tensors, message in (
        ({'a/sparse.bits': np.zeros(3, np.uint8)}, 'a/sparse has no bits of 6000 numbers'),
        ({'a/sparse.values': np.zeros(3, dtype)}, 'a/sparse has 3 numbers for'),
    ):
        with pytest.raises(InputError, match=message):
            unpacked(PackedSparseArrays(stored.tensors | tensors, stored.shapes))


def test_paths_make_the_tree_again():
    tree = {'a': {0: {'b': np.ones(2)}, 1: {'b': np.zeros(3)}}, 'c': np.ones(1)}
    flat = flatten_by_path(tree)
    assert set(flat) == {'a/0/b', 'a/1/b', 'c'}
    again = unflatten_paths(flat)
    assert set(again['a']) == {0, 1}
    np.testing.assert_array_equal(again['a'][1]['b'], np.zeros(3))
