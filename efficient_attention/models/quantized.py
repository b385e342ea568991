"""Quantizes a model: decides which layers round to int8, and replaces their parameters by int8 codes."""

import re
from collections.abc import Collection, Iterable
from typing import Any

from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.modules.dense_layer import Dense
from efficient_attention.modules.embedding_table import EmbeddingTable

Layer = Dense | EmbeddingTable


def quantized_layers(module: nnx.Module) -> list[tuple[str, Layer]]:
    """Returns the path and the module of each quantized layer of a model."""
    found = [('/'.join(map(str, path)), node) for path, node in nnx.iter_graph(module)]
    return [(name, node) for name, node in found if isinstance(node, Layer) and node.quantization != 'none']


def set_quantization(module: nnx.Module, config: ModelConfig, where: str) -> None:
    """Sets the config's kind of quantization in all dense layers and embedding tables of a module, except in layers
    that match `float_layers`.

    Layers with float32 results, such as the last layer of a head, are not quantized.

    Args:
        module: a part of the model.
        config: the config of the model.
        where: path of `module` in the model; `float_layers` are matched against full paths.
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
    """Raises InputError if a regex of the config field `float_layers` matches the path of no layer.

    Args:
        patterns: the regexes.
        paths: the paths of parameters. The path of a kernel or table without its last name is the layer's path.
    """
    parted = [path.rpartition('/') for path in paths]
    layers = [layer for layer, _, name in parted if name in ('kernel', 'embedding')]
    for pattern in patterns:
        if not any(re.search(pattern, layer) for layer in layers):
            raise InputError(f'model.float_layers has {pattern!r}, which is found in the path of no layer')


def check_some_rounded(patterns: tuple[str, ...], rounded: Collection[Any]) -> None:
    """Raises InputError if no layer is left to quantize, because the regexes of `float_layers` match all layers."""
    if not rounded:
        raise InputError(f'model.float_layers {", ".join(patterns)} leaves no layer to round: name fewer layers')


def store_int8_codes(module: nnx.Module) -> None:
    """Replaces the parameters of all quantized layers by int8 codes and scales; afterwards the model cannot be
    trained.
    """
    for _, layer in quantized_layers(module):
        layer.store_int8_codes()
