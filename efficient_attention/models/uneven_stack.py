"""A stack of layers of different sizes: runs one scan for each group of consecutive layers of equal size."""

import dataclasses
import itertools
from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.layer_activations import LayerActivations
from efficient_attention.models.layer_stack import Stack
from efficient_attention.modules.layer import ATTENTION, FEED_FORWARD, SubLayer
from efficient_attention.modules.layer_context import Context


class EqualLayerGroup(NamedTuple):
    """Consecutive layers of equal size: their config, their sub-layers, and the number of the first of these layers."""

    config: ModelConfig
    sub_layers: tuple[SubLayer, ...]
    first: int


def layer_sizes(config: ModelConfig) -> list[tuple[int, int]]:
    """Returns the number of heads and of feed-forward units of each layer; layers that share parameters appear once."""
    count = len(set(config.layer_to_param_index))
    heads = config.layer_heads or (config.heads,) * count
    units = config.layer_units or (config.feed_forward_width,) * count
    return list(zip(heads, units, strict=True))


def equal_layer_groups(config: ModelConfig) -> list[EqualLayerGroup]:
    """Returns the groups of consecutive layers of equal size, in the order of the layers."""
    found, first = [], 0
    for (heads, units), alike in itertools.groupby(layer_sizes(config)):
        layers = config.layers if config.sharing == 'all' else len(list(alike))
        own = dataclasses.replace(
            config,
            ranks=usable_ranks(config, heads, units),
            layer_heads=(),
            layer_units=(),
            layers=layers,
            heads=heads or config.heads,
            feed_forward_width=units or config.feed_forward_width,
        )
        attention = ATTENTION if heads else dataclasses.replace(ATTENTION, keys_from=(), is_constant=True)
        feed_forward = FEED_FORWARD if units else dataclasses.replace(FEED_FORWARD, is_constant=True)
        subs = (attention, *([feed_forward] * config.feed_forward))
        found.append(EqualLayerGroup(own, subs, first))
        first += layers
    return found


def usable_ranks(config: ModelConfig, heads: int, units: int) -> tuple[str, ...]:
    """Returns the ranks of low-rank kernels for layers of this size; a kernel that is smaller than its rank is not
    factorised.
    """

    def is_within(kind: str, rank: int) -> bool:
        wide = units if kind in ('gate', 'up', 'down') else heads * config.head_width
        return kind == 'token' or rank <= min(wide or rank, config.width)

    return tuple(f'{kind}={rank}' for kind, rank in config.ranks_by_kind if is_within(kind, rank))


class UnevenStack(nnx.Module):
    """A stack of encoder layers with different numbers of heads or feed-forward units, [B, L, D] -> [B, L, D]."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.stretches = nnx.List(
            [Stack(own, sub_layers=subs, first=first, rngs=rngs) for own, subs, first in equal_layer_groups(config)]
        )

    def __call__(self, x_BLD: Array, context: Context) -> Array:
        """Returns the last layer's output [B, L, D].

        The arguments are the same as for `Stack`.
        """
        for stack in self.stretches:
            x_BLD = stack(x_BLD, context)
        return x_BLD

    def with_layer_activations(self, x_BLD: Array, context: Context) -> tuple[Array, LayerActivations]:
        """Returns the last layer's output and the outputs of all layers, without queries and keys.

        Queries and keys cannot be stacked, because the layers differ in their number of heads.
        """
        outputs = []
        for stack in self.stretches:
            x_BLD, activations = stack.with_layer_activations(x_BLD, context)
            outputs.append(activations.outputs_NBLD)
        return x_BLD, LayerActivations(jnp.concatenate(outputs), {})
