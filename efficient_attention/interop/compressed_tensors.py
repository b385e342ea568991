"""8-bit models under the names that transformers loads with the package compressed-tensors.

A linear layer is `weight`, int8 [out, in], and `weight_scale`, float32 [out, 1], whose inputs get codes by token in
each call; tables have no such form there and are float16. Format: compressed-tensors 0.20, `int-quantized`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.codes import SCALE, Flat, as_flat, as_tree, rounded_paths
from efficient_attention.interop.config_out import QUANTIZED
from efficient_attention.interop.families import Family
from efficient_attention.interop.parameters import Tensor, copies_of, plain_names, written_name
from efficient_attention.interop.safetensors_files import TensorFolder

METHOD = 'compressed-tensors'
CODES = {'num_bits': 8, 'type': 'int', 'symmetric': True}


def check_compressible(model: ModelConfig, head: HeadConfig) -> None:
    """Raises InputError where a model has no such form."""
    if model.decoder_layers:
        raise InputError('an encoder-decoder has no 8-bit form; encoders have')
    if model.quantization != 'int8':
        raise InputError(
            f'model.quantization is {model.quantization!r}; what compressed-tensors names (--compressed) is rounded by '
            "'int8' (--quantize int8)"
        )
    if model.ranks or model.is_uneven:
        raise InputError(
            'kernels that are products, or layers of different width, are 8-bit in the small form alone, '
            'without --compressed'
        )
    if not kernels_of(model, head):
        raise InputError(
            f'model.float_layers {", ".join(model.float_layers)} leaves no kernel to round, and {METHOD} rounds no '
            'other layers: name fewer layers'
        )


def kernels_of(model: ModelConfig, head: HeadConfig) -> set[str]:
    """The paths of the kernels that are rounded."""
    return {path for path in rounded_paths(model, head) if path.endswith('/kernel')}


def compressed_params(params: Mapping[Any, Any], codes: Flat) -> dict[Any, Any]:
    """The parameters with int8 in the place of kernels that have codes, and float16 tables.

    Raises:
        InputError: a table has numbers beyond float16.
    """
    found = as_flat(params)
    for path, array in found.items():
        if path + SCALE in codes and path.endswith('/kernel'):
            found[path] = codes[path]
        elif path.endswith('/embedding'):
            if np.abs(array).max(initial=0.0) > np.finfo(np.float16).max:
                raise InputError(f'{path} has numbers beyond float16, which tables have in the names of {METHOD}')
            found[path] = array.astype(np.float16)
    return as_tree(found)


def scales(codes: Flat, family: Family, tensors: Iterable[Tensor], *, is_bare: bool) -> Flat:
    """`weight_scale` [out, 1] of each layer whose kernel has codes, by its name in a file."""
    found: Flat = {}
    for tensor in tensors:
        if tensor.path.endswith('/kernel') and tensor.path + SCALE in codes:
            scale = codes[tensor.path + SCALE]
            for name, row in zip(tensor.names, scale if tensor.is_stacked else [scale], strict=True):
                found[f'{written_name(family, name, is_bare=is_bare)}_scale'] = row.T.astype(np.float32)
    return found


def quantization_config(codes: Flat, family: Family, tensors: Iterable[Tensor], *, is_bare: bool) -> dict[str, Any]:
    """The key of config.json by which transformers knows what is rounded, and which linear layers are not."""
    floats = [one for one in tensors if one.path.endswith('/kernel') and one.path + SCALE not in codes]
    names = [written_name(family, name, is_bare=is_bare) for tensor in floats for name in tensor.names]
    names += [name for name in copies_of(family) if name.endswith('.weight')]
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
    """Whether a config.json is that of such a folder."""
    known = values.get(QUANTIZED)
    return isinstance(known, dict) and known.get('quant_method') == METHOD


def check_readable(values: Mapping[str, Any], model: ModelConfig) -> None:
    """Raises InputError where a folder's tensors have another form than those that are read here."""
    known = values.get(QUANTIZED)
    if known is not None and (not is_compressed(values) or model.quantization != 'int8'):
        method = known.get('quant_method') if isinstance(known, dict) else known
        raise InputError(
            f'{QUANTIZED} is of {method!r}; read here: what scripts/convert.py --compressed has written, whose own '
            'keys say what is rounded'
        )


def read_codes(flat: Flat, kernels: set[str], tensors: Iterable[Tensor], folder: TensorFolder, family: Family) -> Flat:
    """A folder's parameters by path as codes: those of its kernels as they are stored.

    Args:
        flat: its parameters, float32.
        kernels: the paths of those that the model rounds.
        tensors: of its family.
        folder: the files.
        family: whose names they have.
    """
    found, codes = plain_names(family, folder.shapes), dict(flat)
    for tensor in tensors:
        if tensor.path in kernels:
            pairs = [folder.read_codes(found[name.lstrip('.')]) for name in tensor.names]
            for path, arrays in zip((tensor.path, tensor.path + SCALE), zip(*pairs, strict=True), strict=True):
                rows = [array.T for array in arrays]
                codes[path] = np.stack(rows) if tensor.is_stacked else rows[0]
    return codes
