"""Converts model parameters to the arrays of a compact export: int8 codes with scales for quantized arrays, and bits
with values for sparse arrays.

The int8 codes equal the codes that a quantized model's layers compute from their parameters in each call
(modules/int8.py).
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.models.quantized import quantized_layers
from efficient_attention.modules.int8 import dequantize_int8, int8_scale, quantize_to_int8

# axis over which numbers share one scale: the inputs of a kernel, or the vector of a row of an embedding table
AXES = {'kernel': -2, 'embedding': -1}
SCALE = '_scale'
BITS, VALUES = '.bits', '.values'
Flat = dict[str, np.ndarray]


class PackedSparseArrays(NamedTuple):
    """Arrays by name, where a sparse array is stored as bits and values; `shapes` holds the shapes of these sparse
    arrays.
    """

    tensors: Flat
    shapes: dict[str, list[int]]


@functools.lru_cache(maxsize=8)
def quantized_paths(model: ModelConfig, head: HeadConfig) -> tuple[str, ...]:
    """Returns the paths of the parameters that a quantized model rounds to 8 bits."""

    def make() -> nnx.Module:
        rngs = nnx.Rngs(0)
        return Encoder(model, rngs=rngs) if head.kind == 'none' else FineTuningModel(model, head, rngs=rngs)

    where = 'encoder/' if head.kind == 'none' else ''
    layers = quantized_layers(nnx.eval_shape(make))
    return tuple(f'{where}{name}/{"kernel" if hasattr(layer, "kernel") else "embedding"}' for name, layer in layers)


def quantize_params(flat: Mapping[str, np.ndarray], model: ModelConfig, head: HeadConfig) -> Flat:
    """Returns a model's parameters by path, with the quantized ones as int8 codes. The scales are stored under `path +
    SCALE`.
    """
    found = dict(flat)
    for path in quantized_paths(model, head):
        scale = int8_scale(found[path], AXES[path.rpartition('/')[2]])
        found[path + SCALE] = np.asarray(scale)
        found[path] = np.asarray(quantize_to_int8(found[path], scale))
    return found


def dequantize_params(flat: Mapping[str, np.ndarray]) -> Flat:
    """Returns a quantized model's parameters by path as float32; raises InputError if a scale is missing or has the
    wrong shape.
    """
    check_scales(flat)
    numbers = {path: array for path, array in flat.items() if not path.endswith(SCALE)}
    return {
        path: np.asarray(dequantize_int8(array, flat[path + SCALE])) if array.dtype == np.int8 else array
        for path, array in numbers.items()
    }


def check_scales(flat: Mapping[str, np.ndarray]) -> None:
    """Raises InputError if an array of int8 codes has no scale, or a scale of the wrong shape."""
    for path, array in flat.items():
        if array.dtype != np.int8:
            continue
        scale = flat.get(path + SCALE)
        shape = list(array.shape)
        shape[AXES.get(path.rpartition('/')[2], -1)] = 1
        if scale is None or list(scale.shape) != shape:
            fault = 'no scale' if scale is None else f'a scale of shape {list(scale.shape)}, not {shape}'
            raise InputError(f'{path} is int8 and has {fault}')


def packed(flat: Mapping[str, np.ndarray]) -> PackedSparseArrays:
    """Packs sparse arrays: an array with many zeros is stored as one bit per number and its non-zero numbers. Other
    arrays stay unchanged.
    """
    tensors: Flat = {}
    shapes: dict[str, list[int]] = {}
    for name, array in flat.items():
        kept = array != 0
        if array.size // 8 + int(kept.sum()) * array.itemsize < array.nbytes - 1:
            tensors[name + BITS], tensors[name + VALUES] = np.packbits(kept.ravel()), array[kept]
            shapes[name] = list(array.shape)
        else:
            tensors[name] = array
    return PackedSparseArrays(tensors, shapes)


def unpacked(found: PackedSparseArrays) -> Flat:
    """Returns the full arrays of packed sparse arrays; raises InputError if bits and values do not match."""
    arrays = {name: array for name, array in found.tensors.items() if not name.endswith((BITS, VALUES))}
    for name, shape in found.shapes.items():
        bits, values = found.tensors.get(name + BITS), found.tensors.get(name + VALUES)
        size = int(np.prod(shape))
        if bits is None or values is None or bits.dtype != np.uint8 or bits.size != -(-size // 8):
            raise InputError(f'{name} has no bits of {size} numbers')
        kept = np.unpackbits(bits, count=size).astype(bool)
        if values.ndim != 1 or values.size != kept.sum():
            raise InputError(f'{name} has {values.size} numbers for {int(kept.sum())} places')
        whole = np.zeros(size, values.dtype)
        whole[kept] = values
        arrays[name] = whole.reshape(shape)
    return arrays


def quantization_errors(flat: Mapping[str, np.ndarray], model: ModelConfig, head: HeadConfig) -> dict[str, float]:
    """Returns the relative rounding error of each quantized parameter, per layer: the RMS of the error divided by the
    RMS of the parameter.
    """
    codes = quantize_params(flat, model, head)
    exact = dequantize_params(codes)
    errors: dict[str, float] = {}
    for path in quantized_paths(model, head):
        before, lost = flat[path], exact[path] - flat[path]
        each = before.ndim == 3
        for number in range(len(before) if each else 1):
            one, other = (before[number], lost[number]) if each else (before, lost)
            size = float(np.sqrt(np.mean(np.square(one)))) or 1.0
            errors[f'{path}{f" of layer {number + 1}" if each else ""}'] = float(np.sqrt(np.mean(other**2))) / size
    return errors


def flatten_by_path(tree: Any) -> Flat:
    """Returns {path: array} for all arrays in a tree of parameters."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator='/'): np.asarray(leaf) for path, leaf in leaves}


def unflatten_paths(flat: Mapping[str, Any]) -> dict[Any, Any]:
    """Returns nested dicts of arrays from {path: array}. A number in a path becomes an int key, as in Flax module
    lists.
    """
    tree: dict[Any, Any] = {}
    for path, leaf in flat.items():
        *where, last = (int(part) if part.isdecimal() else part for part in path.split('/'))
        node = tree
        for part in where:
            node = node.setdefault(part, {})
        node[last] = leaf
    return tree
