"""Quantization of a model: which layers round to int8, and how their parameters are replaced by int8 codes."""

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
    """Returns the quantized layers of a model with their paths."""
    found = [('/'.join(map(str, path)), node) for path, node in nnx.iter_graph(module)]
    return [(name, node) for name, node in found if isinstance(node, Layer) and node.quantization != 'none']


def set_quantization(module: nnx.Module, config: ModelConfig, where: str) -> None:
    """Sets the config's quantization in all dense layers and embedding tables of a sub-module.

    Layers with float32 results, such as the last layer of a head, are not quantized.

    Args:
        module: the part.
        config: of the model.
        where: path of the part in the model; `float_layers` are matched against full paths.
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
    """Raises InputError if a regex of `float_layers` matches no layer, by the rule of `set_quantization`.

    Args:
        patterns: the regexes.
        paths: of parameters. The path of a kernel or table without its last name is the layer's path.
    """
    parted = [path.rpartition('/') for path in paths]
    layers = [layer for layer, _, name in parted if name in ('kernel', 'embedding')]
    for pattern in patterns:
        if not any(re.search(pattern, layer) for layer in layers):
            raise InputError(f'model.float_layers has {pattern!r}, which is found in the path of no layer')


def check_some_rounded(patterns: tuple[str, ...], rounded: Collection[Any]) -> None:
    """Raises InputError if `rounded` is empty because the regexes of `float_layers` match all layers."""
    if not rounded:
        raise InputError(f'model.float_layers {", ".join(patterns)} leaves no layer to round: name fewer layers')


def store_int8_codes(module: nnx.Module) -> None:
    """Replaces the parameters of quantized layers by int8 codes and scales, after which training is impossible."""
    for _, layer in quantized_layers(module):
        layer.store_int8_codes()
