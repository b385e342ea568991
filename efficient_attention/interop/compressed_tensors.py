"""Imports and exports 8-bit encoders in the format of the Python package compressed-tensors, which transformers can
load.

A linear layer is `weight`, int8 [out, in], and `weight_scale`, float32 [out, 1]; its inputs are quantized per token in
each call. The format has no 8-bit tables, so tables are float16. Format: compressed-tensors 0.20, `int-quantized`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.config_export import QUANTIZED
from efficient_attention.interop.huggingface_tensor_names import HuggingFaceFamily
from efficient_attention.interop.int8_codes import SCALE, Flat, flatten_by_path, quantized_paths, unflatten_paths
from efficient_attention.interop.safetensors_files import SafetensorsFolder
from efficient_attention.interop.tensor_conversion import (
    ParameterTensors,
    exported_tensor_name,
    tensor_names_by_plain_name,
    tied_copy_names,
)

METHOD = 'compressed-tensors'
CODES = {'num_bits': 8, 'type': 'int', 'symmetric': True}


def check_compressible(model: ModelConfig, head: HeadConfig) -> None:
    """Raises InputError if a model cannot be exported in the compressed-tensors format."""
    if model.decoder_layers:
        raise InputError('an encoder-decoder cannot be exported in 8 bits; only encoders can')
    if model.quantization != 'int8':
        raise InputError(
            f'model.quantization is {model.quantization!r}; the format compressed-tensors (--compressed) needs '
            "'int8' (--quantize int8)"
        )
    if model.ranks or model.has_layer_specific_sizes:
        raise InputError(
            'factored kernels and layers of different sizes have an 8-bit form only in the compact export, '
            'without --compressed'
        )
    if not quantized_kernel_paths(model, head):
        raise InputError(
            f'model.float_layers {", ".join(model.float_layers)} leaves no kernel to round, and {METHOD} rounds no '
            'other layers: name fewer layers'
        )


def quantized_kernel_paths(model: ModelConfig, head: HeadConfig) -> set[str]:
    """Returns the paths of the kernels that a quantized model rounds to 8 bits."""
    return {path for path in quantized_paths(model, head) if path.endswith('/kernel')}


def compressed_params(params: Mapping[Any, Any], codes: Flat) -> dict[Any, Any]:
    """Returns the model's parameters for a compressed-tensors export: int8 codes for quantized kernels, and float16
    embedding tables.

    Raises:
        InputError: a table has numbers beyond float16.
    """
    found = flatten_by_path(params)
    for path, array in found.items():
        if path + SCALE in codes and path.endswith('/kernel'):
            found[path] = codes[path]
        elif path.endswith('/embedding'):
            if np.abs(array).max(initial=0.0) > np.finfo(np.float16).max:
                raise InputError(f'{path} has numbers beyond float16, the type of tables in the format of {METHOD}')
            found[path] = array.astype(np.float16)
    return unflatten_paths(found)


def weight_scales(
    codes: Flat, family: HuggingFaceFamily, tensors: Iterable[ParameterTensors], *, is_bare: bool
) -> Flat:
    """Returns the tensor `weight_scale` [out, 1] of each quantized layer, by the tensor's name in the file."""
    found: Flat = {}
    for tensor in tensors:
        if tensor.path.endswith('/kernel') and tensor.path + SCALE in codes:
            scale = codes[tensor.path + SCALE]
            for name, row in zip(tensor.names, scale if tensor.is_stacked else [scale], strict=True):
                found[f'{exported_tensor_name(family, name, is_bare=is_bare)}_scale'] = row.T.astype(np.float32)
    return found


def quantization_config(
    codes: Flat, family: HuggingFaceFamily, tensors: Iterable[ParameterTensors], *, is_bare: bool
) -> dict[str, Any]:
    """Returns the entry `quantization_config` of config.json, which says how layers are quantized and which linear
    layers are not.
    """
    floats = [one for one in tensors if one.path.endswith('/kernel') and one.path + SCALE not in codes]
    names = [exported_tensor_name(family, name, is_bare=is_bare) for tensor in floats for name in tensor.names]
    names += [name for name in tied_copy_names(family) if name.endswith('.weight')]
    group = {
        'targets': ['Linear'],
        'weights': CODES | {'strategy': 'channel', 'dynamic': False},
        'input_activations': CODES | {'strategy': 'token', 'dynamic': True},
    }
    return {
        'quant_method': METHOD,
        'format': 'int-quantized',
        'quantization_status': 'compressed',
        'config_groups': {'group_0': group},
        'ignore': sorted(name.removesuffix('.weight') for name in names),
    }


def is_compressed(values: Mapping[str, Any]) -> bool:
    """Returns whether a config.json belongs to a folder in the compressed-tensors format."""
    known = values.get(QUANTIZED)
    return isinstance(known, dict) and known.get('quant_method') == METHOD


def check_readable(values: Mapping[str, Any], model: ModelConfig) -> None:
    """Raises InputError if the tensors of a model folder are quantized in a format that this project cannot read."""
    known = values.get(QUANTIZED)
    if known is not None and (not is_compressed(values) or model.quantization != 'int8'):
        method = known.get('quant_method') if isinstance(known, dict) else known
        raise InputError(
            f'{QUANTIZED} is of {method!r}; read here: only exports of `convert --compressed`, with '
            'the keys that this project adds'
        )


def read_int8_codes(
    flat: Flat,
    kernels: set[str],
    tensors: Iterable[ParameterTensors],
    folder: SafetensorsFolder,
    family: HuggingFaceFamily,
) -> Flat:
    """Returns a compressed-tensors folder's parameters by path, where quantized kernels are the stored int8 codes and
    their scales.

    Args:
        flat: the folder's parameters, float32.
        kernels: the paths of the kernels that the model rounds.
        tensors: the tensors of its family.
        folder: the files.
        family: the family whose names the files use.
    """
    found, codes = tensor_names_by_plain_name(family, folder.shapes), dict(flat)
    for tensor in tensors:
        if tensor.path in kernels:
            pairs = [folder.read_int8_codes(found[name.lstrip('.')]) for name in tensor.names]
            for path, arrays in zip((tensor.path, tensor.path + SCALE), zip(*pairs, strict=True), strict=True):
                rows = [array.T for array in arrays]
                codes[path] = np.stack(rows) if tensor.is_stacked else rows[0]
    return codes
