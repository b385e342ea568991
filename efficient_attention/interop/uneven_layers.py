"""Layers that differ in heads or units as layers of one size, whose kept heads and units stand first, and back.

What is added are zeros: the larger layers compute the same. So shrunk models have a place in formats that know one
size for all layers.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.sharding import path_name
from efficient_attention.models.uneven import Stretch, layer_sizes, stretches

COLUMNS = ('query', 'key', 'value', 'up', 'gate')  # whose outputs are heads or units
ROWS = ('out', 'down')  # whose inputs are
LAST = {'attention': 'out', 'feed_forward': 'down'}
Layer = dict[str, Any]


def even(config: ModelConfig) -> ModelConfig:
    """The config of the padded model, whose matrices are whole."""
    return dataclasses.replace(config, layer_heads=(), layer_units=(), ranks=())


def padded(config: ModelConfig, params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the `even` model that computes the same; those of any other model as they are."""
    if not config.is_uneven:
        return dict(params)
    layers = []
    for number, stretch in enumerate(stretches(config)):
        found = params['encoder']['stack']['stretches'][number]['layers']
        own = stretch.config
        each = (
            [jax.tree.map(lambda leaf, i=i: leaf[i], found) for i in range(own.layers)] if own.is_stacked else [found]
        )
        layers += [padded_layer(config, stretch, one) for one in each]
    return with_stack(params, {'layers': joined(config, layers)})


def unpadded(config: ModelConfig, params: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `padded`; raises InputError where what is left out is not zero."""
    if not config.is_uneven:
        return dict(params)
    whole, sizes, parts = params['encoder']['stack']['layers'], layer_sizes(config), []
    each = [jax.tree.map(lambda leaf, i=i: leaf[i], whole) for i in range(len(sizes))] if config.is_stacked else [whole]
    for stretch in stretches(config):
        count = stretch.config.layers if config.is_stacked else 1
        layers = [unpadded_layer(config, stretch, each.pop(0)) for _ in range(count)]
        parts.append({'layers': joined(config, layers)})
    return with_stack(params, {'stretches': dict(enumerate(parts))})


def with_stack(params: Mapping[str, Any], stack: dict[str, Any]) -> dict[str, Any]:
    """The parameters with another stack in the encoder."""
    return dict(params) | {'encoder': dict(params['encoder']) | {'stack': stack}}


def joined(config: ModelConfig, layers: list[Layer]) -> Layer:
    """Layers of one size as one tree, along a leading axis where the config has one."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *layers) if config.is_stacked else layers[0]


def wide_of(config: ModelConfig, sub: str) -> int:
    """The columns of all heads, or all units."""
    return config.heads * config.head_width if sub == 'attention' else config.feed_forward_width


def padded_layer(config: ModelConfig, stretch: Stretch, layer: Layer) -> Layer:
    """One layer with zeros for the heads and units that it lacks."""
    found = dict(layer)
    for sub in stretch.sub_layers:
        wide = wide_of(config, sub.name)
        kernels = whole_of(config, sub.name, layer[sub.name]) if sub.is_constant else layer[sub.name]
        found[sub.name] = {name: resized(name, one, wide) for name, one in kernels.items()}
    return found


def whole_of(config: ModelConfig, sub: str, constant: Layer) -> Layer:
    """The kernels of a sub-layer without any heads or units, whose last bias is all that is left."""
    has_bias = config.attention_bias if sub == 'attention' else config.feed_forward_bias
    if not has_bias and np.any(constant['bias']):
        raise InputError(f'a layer of which only a bias is left in its {sub} has no place for it: the model has none')
    names = {'attention': ('query', 'key', 'value'), 'feed_forward': ('gate', 'up')}[sub]
    unread = ('key',) * config.shared_qk + ('gate',) * (not config.feed_forward_gate)
    kernels: Layer = {}
    for name in names:
        if name not in unread:
            bias = {'bias': np.zeros(0, np.float32)} if has_bias else {}
            kernels[name] = {'kernel': np.zeros((config.width, 0), np.float32)} | bias
    bias = {'bias': constant['bias']} if has_bias else {}
    return kernels | {LAST[sub]: {'kernel': np.zeros((0, config.width), np.float32)} | bias}


def resized(name: str, dense: Layer, wide: int) -> Layer:
    """A dense layer's arrays with so many columns, or rows, of heads or units: zeros behind them, or cut."""
    axes = {'kernel': -1, 'bias': -1} if name in COLUMNS else {'kernel': -2} if name in ROWS else {}
    return {leaf: fitted(array, axes[leaf], wide) if leaf in axes else array for leaf, array in dense.items()}


def fitted(array: np.ndarray, axis: int, size: int) -> np.ndarray:
    """The array with zeros behind it along an axis, or without its end."""
    missing = size - array.shape[axis]
    if missing <= 0:
        return np.take(array, np.arange(size), axis=axis)
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, missing)
    return np.pad(array, widths)


def unpadded_layer(config: ModelConfig, stretch: Stretch, layer: Layer) -> Layer:
    """One layer without what its size says that it lacks."""
    found = dict(layer)
    for sub in stretch.sub_layers:
        wide = 0 if sub.is_constant else wide_of(stretch.config, sub.name)
        kernels = {name: resized(name, one, wide) for name, one in layer[sub.name].items()}
        whole = {name: resized(name, one, wide_of(config, sub.name)) for name, one in kernels.items()}
        for path, left in jax.tree_util.tree_leaves_with_path(whole):
            before = dict(by_name(layer[sub.name]))[path_name(path)]
            if not np.array_equal(left, before):
                raise InputError(f'{sub.name}/{path_name(path)} has numbers in heads or units that are removed')
        found[sub.name] = kernels
        if sub.is_constant:
            bias = kernels[LAST[sub.name]].get('bias', np.zeros(config.width, np.float32))
            found[sub.name] = {'bias': bias}
    return found


def by_name(tree: Layer) -> list[tuple[str, np.ndarray]]:
    """The arrays of a tree with their paths."""
    return [(path_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]
