"""Pads layers of different sizes to one size, for formats that allow only one size, and cuts the padding off again.

The added heads and units are zeros and come last, so the padded layers compute the same. Padding lets shrunk models use
formats with one size for all layers.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.sharding import path_name
from efficient_attention.models.uneven_stack import EqualLayerGroup, equal_layer_groups, layer_sizes

# The columns of these kernels belong to attention heads or feed-forward units.
COLUMNS = ('query', 'key', 'value', 'up', 'gate')
ROWS = ('out', 'down')  # The rows of these kernels belong to attention heads or feed-forward units.
LAST = {'attention': 'out', 'feed_forward': 'down'}
Layer = dict[str, Any]


def padded_config(config: ModelConfig) -> ModelConfig:
    """Returns the config of the padded model, in which all layers have one size and kernels are not factored."""
    return dataclasses.replace(config, layer_heads=(), layer_units=(), ranks=())


def pad_layers(config: ModelConfig, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of an equivalent model whose layers all have one size. If the sizes are already equal, the
    parameters stay unchanged.
    """
    if not config.has_layer_specific_sizes:
        return dict(params)
    layers = []
    for number, stretch in enumerate(equal_layer_groups(config)):
        found = params['encoder']['stack']['stretches'][number]['layers']
        own = stretch.config
        each = (
            [jax.tree.map(lambda leaf, i=i: leaf[i], found) for i in range(own.layers)] if own.is_stacked else [found]
        )
        layers += [padded_layer(config, stretch, one) for one in each]
    return with_encoder_stack(params, {'layers': stack_layers(config, layers)})


def unpad_layers(config: ModelConfig, params: Mapping[str, Any]) -> dict[str, Any]:
    """Cuts the padding of `pad_layers` off; raises InputError if a number that is cut off is not zero."""
    if not config.has_layer_specific_sizes:
        return dict(params)
    whole, sizes, parts = params['encoder']['stack']['layers'], layer_sizes(config), []
    each = [jax.tree.map(lambda leaf, i=i: leaf[i], whole) for i in range(len(sizes))] if config.is_stacked else [whole]
    for stretch in equal_layer_groups(config):
        count = stretch.config.layers if config.is_stacked else 1
        layers = [unpadded_layer(config, stretch, each.pop(0)) for _ in range(count)]
        parts.append({'layers': stack_layers(config, layers)})
    return with_encoder_stack(params, {'stretches': dict(enumerate(parts))})


def with_encoder_stack(params: Mapping[str, Any], stack: dict[str, Any]) -> dict[str, Any]:
    """Returns the model's parameters with the encoder's stack of layers replaced."""
    return dict(params) | {'encoder': dict(params['encoder']) | {'stack': stack}}


def stack_layers(config: ModelConfig, layers: list[Layer]) -> Layer:
    """Returns layers of one size as a single tree, with arrays stacked along a leading axis if the config has stacked
    layers.
    """
    return jax.tree.map(lambda *leaves: np.stack(leaves), *layers) if config.is_stacked else layers[0]


def full_width(config: ModelConfig, sub: str) -> int:
    """Returns the full width of a sub-layer: the columns of all attention heads, or the feed-forward units."""
    return config.heads * config.head_width if sub == 'attention' else config.feed_forward_width


def padded_layer(config: ModelConfig, stretch: EqualLayerGroup, layer: Layer) -> Layer:
    """Returns one layer padded to full size, with zeros for the heads and feed-forward units that it lacks."""
    found = dict(layer)
    for sub in stretch.sub_layers:
        wide = full_width(config, sub.name)
        kernels = constant_to_sub_layer(config, sub.name, layer[sub.name]) if sub.is_constant else layer[sub.name]
        found[sub.name] = {name: resize_dense(name, one, wide) for name, one in kernels.items()}
    return found


def constant_to_sub_layer(config: ModelConfig, sub: str, constant: Layer) -> Layer:
    """Converts a sub-layer of which only an output bias remains to a sub-layer with empty kernels and this bias."""
    has_bias = config.attention_bias if sub == 'attention' else config.feed_forward_bias
    if not has_bias and np.any(constant['bias']):
        raise InputError(f'a layer keeps only a bias of its {sub}, but the model has no biases there')
    names = {'attention': ('query', 'key', 'value'), 'feed_forward': ('gate', 'up')}[sub]
    unread = ('key',) * config.shared_qk + ('gate',) * (not config.feed_forward_gate)
    kernels: Layer = {}
    for name in names:
        if name not in unread:
            bias = {'bias': np.zeros(0, np.float32)} if has_bias else {}
            kernels[name] = {'kernel': np.zeros((config.width, 0), np.float32)} | bias
    bias = {'bias': constant['bias']} if has_bias else {}
    return kernels | {LAST[sub]: {'kernel': np.zeros((0, config.width), np.float32)} | bias}


def resize_dense(name: str, dense: Layer, wide: int) -> Layer:
    """Returns a dense layer whose kernel is padded with zeros or cut to `wide` columns (or rows), which belong to heads
    or feed-forward units.
    """
    axes = {'kernel': -1, 'bias': -1} if name in COLUMNS else {'kernel': -2} if name in ROWS else {}
    return {leaf: pad_or_cut_axis(array, axes[leaf], wide) if leaf in axes else array for leaf, array in dense.items()}


def pad_or_cut_axis(array: np.ndarray, axis: int, size: int) -> np.ndarray:
    """Returns the array with length `size` along one axis: padded with zeros, or cut."""
    missing = size - array.shape[axis]
    if missing <= 0:
        return np.take(array, np.arange(size), axis=axis)
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, missing)
    return np.pad(array, widths)


def unpadded_layer(config: ModelConfig, stretch: EqualLayerGroup, layer: Layer) -> Layer:
    """Returns one padded layer cut to its own numbers of heads and feed-forward units."""
    found = dict(layer)
    for sub in stretch.sub_layers:
        wide = 0 if sub.is_constant else full_width(stretch.config, sub.name)
        kernels = {name: resize_dense(name, one, wide) for name, one in layer[sub.name].items()}
        whole = {name: resize_dense(name, one, full_width(config, sub.name)) for name, one in kernels.items()}
        for path, left in jax.tree_util.tree_leaves_with_path(whole):
            before = dict(arrays_by_path(layer[sub.name]))[path_name(path)]
            if not np.array_equal(left, before):
                raise InputError(f'{sub.name}/{path_name(path)} has numbers in heads or units that are removed')
        found[sub.name] = kernels
        if sub.is_constant:
            bias = kernels[LAST[sub.name]].get('bias', np.zeros(config.width, np.float32))
            found[sub.name] = {'bias': bias}
    return found


def arrays_by_path(tree: Layer) -> list[tuple[str, np.ndarray]]:
    """Returns (path, array) for all arrays in a tree of parameters."""
    return [(path_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]
