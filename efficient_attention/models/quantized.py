"""Which layers of a model round their operands to int8, and a model whose parameters are the codes themselves."""

import re
from collections.abc import Collection, Iterable
from typing import Any

from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.modules.dense_layer import Dense
from efficient_attention.modules.table import Table

Layer = Dense | Table


def quantized_layers(module: nnx.Module) -> list[tuple[str, Layer]]:
    """The layers of a model that round their operands, with their paths."""
    found = [('/'.join(map(str, path)), node) for path, node in nnx.iter_graph(module)]
    return [(name, node) for name, node in found if isinstance(node, Layer) and node.quantization != 'none']


def set_quantization(module: nnx.Module, config: ModelConfig, where: str) -> None:
    """Lets the layers of a part of a model round their operands as the config says.

    Those whose results are float32 whatever the model's dtype, the last of heads, stay float.

    Args:
        module: the part.
        config: of the model.
        where: the part's path in the model, which `float_layers` are looked for in.
    """
    if config.quantization == 'none':
        return
    for path, node in nnx.iter_graph(module):
        if not isinstance(node, Layer) or (isinstance(node, Dense) and node.preferred_element_type is not None):
            continue
        name = '/'.join(map(str, (where, *path)))
        if not any(re.search(pattern, name) for pattern in config.float_layers):
            node.quantization = config.quantization


def check_float_layers(patterns: tuple[str, ...], paths: Iterable[str]) -> None:
    """Raises InputError where a regex of `float_layers` is found in the path of no layer, as `set_quantization` looks.

    Args:
        patterns: the regexes.
        paths: of parameters; those of kernels and tables end with the layer's path before the last name.
    """
    parted = [path.rpartition('/') for path in paths]
    layers = [layer for layer, _, name in parted if name in ('kernel', 'embedding')]
    for pattern in patterns:
        if not any(re.search(pattern, layer) for layer in layers):
            raise InputError(f'model.float_layers has {pattern!r}, which is found in the path of no layer')


def check_some_rounded(patterns: tuple[str, ...], rounded: Collection[Any]) -> None:
    """Raises InputError where the regexes of `float_layers` leave no layer that is `rounded`."""
    if not rounded:
        raise InputError(f'model.float_layers {", ".join(patterns)} leaves no layer to round: name fewer layers')


def store_codes(module: nnx.Module) -> None:
    """Puts codes and scales in the place of the parameters that are rounded; there is no training after that."""
    for _, layer in quantized_layers(module):
        layer.store_codes()
