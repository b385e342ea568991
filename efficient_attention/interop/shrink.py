"""Removes pruned attention heads and feed-forward units from a model, so that its layers may differ in size.

A masked head or unit may still give a constant, the same for every token. The constant goes into the sub-layer's bias.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.entmax.definition import Entmax
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.attention.sparsemax.definition import Sparsemax
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.padded_layers import stack_layers, with_encoder_stack
from efficient_attention.interop.pretrained import Pretrained, check_convertible, check_not_quantized
from efficient_attention.models.uneven_stack import equal_layer_groups
from efficient_attention.modules.feed_forward import ACTIVATION_FUNCTIONS

# In these attention mechanisms, a query's weights sum to 1 if it has at least one key.
SUM_TO_ONE = (Softmax, Sparsemax, Entmax)
Layer = dict[str, Any]


class ShrunkLayer(NamedTuple):
    """A layer without its masked heads and units, and how many heads and units remain."""

    layer: Layer
    heads: int
    units: int


def shrink(pretrained: Pretrained) -> Pretrained:
    """Returns the model without the attention heads and feed-forward units that pruning has masked.

    A head is masked if all its output weights or all its value weights are zero; a unit likewise. Smaller masked blocks
    and single masked weights stay, as zeros.

    Raises:
        InputError: no whole head or unit is masked, or heads cannot be removed from these layers.
    """
    check_convertible(pretrained, 'shrunk')
    model = pretrained.model
    if model.has_layer_specific_sizes:
        raise InputError('the model is shrunk already; its layers differ in heads or units')
    check_can_shrink(model)
    check_not_quantized(pretrained)
    params = pretrained.params()
    stack = params['encoder']['stack']['layers']
    count = len(set(model.layer_to_param_index))
    layers = [jax.tree.map(lambda leaf, i=i: leaf[i], stack) for i in range(count)] if model.is_stacked else [stack]
    kept = [shrunk_layer(model, layer) for layer in layers]
    heads, units = tuple(one.heads for one in kept), tuple(one.units for one in kept)
    if min(heads) == model.heads and (min(units) == model.feed_forward_width or not model.feed_forward):
        raise InputError('nothing to shrink: in no layer is a whole head or feed-forward unit zero')
    smaller = with_layer_sizes(model, heads, units)
    parts, rest = [], [one.layer for one in kept]
    for stretch in equal_layer_groups(smaller):
        number = stretch.config.layers if model.is_stacked else 1
        parts.append({'layers': stack_layers(smaller, rest[:number])})
        rest = rest[number:]
    found = with_encoder_stack(params, {'stretches': dict(enumerate(parts))})
    return dataclasses.replace(pretrained, model=smaller, params=lambda: found, codes=None)


def parameter_count(params: Any) -> int:
    """Returns the number of parameters in a tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def zero_count(params: Any) -> int:
    """Returns the number of parameters that are 0."""
    return sum(leaf.size - np.count_nonzero(leaf) for leaf in jax.tree.leaves(params))


def check_can_shrink(model: ModelConfig) -> None:
    """Raises InputError if heads and units cannot be removed from the model, for example because its kernels are
    factored.
    """
    if model.ranks:
        raise InputError('heads and units cannot be removed from factored kernels; shrink first, then factor')
    if model.sharing == 'all' and len(set(model.layer_to_param_index)) > 1:
        raise InputError(
            'heads and units cannot be removed from several shared layers (model.layer_groups, model.inner_layers)'
        )
    less = {'units': model.feed_forward_width - 1} if model.feed_forward else {'heads': model.heads - 1}
    sizes = {'heads': model.heads, 'units': model.feed_forward_width} | less
    count = len(set(model.layer_to_param_index))
    with_layer_sizes(model, (sizes['heads'],) * count, (sizes['units'],) * count)


def with_layer_sizes(model: ModelConfig, heads: tuple[int, ...], units: tuple[int, ...]) -> ModelConfig:
    """Returns the model's config with these numbers of heads and feed-forward units per layer. Without a change, the
    config keeps one number for all layers.

    Raises:
        InputError: heads have parameters besides the kernels, or the layers are not one plain stack.
    """
    own_heads = heads if min(heads) < model.heads else ()
    own_units = units if model.feed_forward and min(units) < model.feed_forward_width else ()
    try:
        return dataclasses.replace(model, layer_heads=own_heads, layer_units=own_units)
    except InputError as error:
        raise InputError(f'heads and units cannot be removed: {error}') from None


def shrunk_layer(model: ModelConfig, layer: Layer) -> ShrunkLayer:
    """Returns one layer without its masked heads and units."""
    attention, heads = shrunk_attention(model, layer['attention'])
    found = layer | {'attention': attention}
    if not model.feed_forward:
        return ShrunkLayer(found, heads, 0)
    feed_forward, units = shrunk_feed_forward(model, layer['feed_forward'])
    return ShrunkLayer(found | {'feed_forward': feed_forward}, heads, units)


def shrunk_attention(model: ModelConfig, attention: Layer) -> tuple[Layer, int]:
    """Returns the attention sub-layer without masked heads, and the number of remaining heads."""
    out_HKD = attention['out']['kernel'].reshape(model.heads, model.head_width, -1)
    value_DHK = attention['value']['kernel'].reshape(-1, model.heads, model.head_width)
    has_no_output = ~np.any(out_HKD, axis=(1, 2))
    bias_HK = attention['value'].get('bias', np.zeros(value_DHK.shape[1:], np.float32)).reshape(value_DHK.shape[1:])
    constant_HD = np.einsum('HK,HKD->HD', bias_HK, out_HKD)
    is_constant = ~np.any(value_DHK, axis=(0, 2)) & (isinstance(model.mechanisms[0], SUM_TO_ONE))
    is_constant &= model.attention_bias | ~np.any(constant_HD, axis=1)
    is_kept = ~(has_no_output | is_constant)
    columns = np.repeat(is_kept, model.head_width)
    added_D = constant_HD[is_constant & ~has_no_output].sum(axis=0)
    return remove_masked_columns(attention, columns, 'out', added_D), int(is_kept.sum())


def shrunk_feed_forward(model: ModelConfig, feed_forward: Layer) -> tuple[Layer, int]:
    """Returns the feed-forward sub-layer without masked units, and the number of remaining units."""
    down_FD, up_DF = feed_forward['down']['kernel'], feed_forward['up']['kernel']
    has_no_output, is_constant = ~np.any(down_FD, axis=1), ~np.any(up_DF, axis=0)
    given_F = bias_of(feed_forward['up'])
    if model.feed_forward_gate:
        is_constant &= ~np.any(feed_forward['gate']['kernel'], axis=0)
        given_F = activated(model, bias_of(feed_forward['gate'])) * given_F
    else:
        given_F = activated(model, given_F)
    constant_FD = given_F[:, None] * down_FD
    is_constant &= model.feed_forward_bias | ~np.any(constant_FD, axis=1)
    is_kept = ~(has_no_output | is_constant)
    added_D = constant_FD[is_constant & ~has_no_output].sum(axis=0)
    return remove_masked_columns(feed_forward, is_kept, 'down', added_D), int(is_kept.sum())


def bias_of(dense: Layer) -> np.ndarray:
    """Returns the bias of a dense layer, or zeros if it has none."""
    return dense.get('bias', np.zeros(dense['kernel'].shape[-1], np.float32))


def activated(model: ModelConfig, x_F: np.ndarray) -> np.ndarray:
    """Returns the model's activation function applied to an array."""
    return np.asarray(ACTIVATION_FUNCTIONS[model.activation](jnp.asarray(x_F)))


def remove_masked_columns(sub: Layer, is_kept: np.ndarray, last: str, added_D: np.ndarray) -> Layer:
    """Removes masked columns from a sub-layer's kernels, and the matching rows from its kernel `last`. If no column is
    kept, only a bias remains.
    """
    bias_D = sub[last].get('bias', np.zeros_like(added_D)) + added_D
    if not is_kept.any():
        return {'bias': bias_D}
    found = {
        name: {leaf: array[..., is_kept] for leaf, array in dense.items()}
        for name, dense in sub.items()
        if name != last
    }
    bias = {'bias': bias_D} if 'bias' in sub[last] else {}
    return found | {last: {'kernel': sub[last]['kernel'][is_kept]} | bias}
