"""Layer activations: outputs for distillation, and attention queries and keys for plots."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from efficient_attention.modules.attention import AttentionOperands
from efficient_attention.modules.layer import Streams, merge_streams

# A layer's streams, and its attentions' operands by name.
LayerTap = tuple[Streams, dict[str, AttentionOperands]]


class LayerActivations(NamedTuple):
    """The activations of all N layers of a stack, along a leading axis of each array.

    The attention weights of layer i are `attention_weights(query[i], key[i], mechanism, ...)`, with the mechanism of
    `layer_mechanisms`. Other operands are passed too, if the model has them: `relative[i]`, the bias of `Stack.terms`,
    and segments.

    Args:
        outputs: per layer; in a reversible stack, the mean of its two streams after the layer.
        attention: queries, keys and relative terms, by the name of the sub-layer. With memory, its keys come first.
    """

    outputs_NBLD: Array
    attention: dict[str, AttentionOperands]


class HiddenStates(NamedTuple):
    """The activations by which distillation compares a student and its teacher.

    Args:
        states: the embeddings and the outputs of the N layers, all with the norm of the last output.
        attention: of all N layers; None if the layers have no attention.
    """

    states_NBLD: Array
    attention: AttentionOperands | None


def stack_layer_activations(layers: LayerTap, dtype: DTypeLike) -> LayerActivations:
    """Returns the layer activations from stacked streams and operands; outputs have the given dtype."""
    streams, attention = layers
    return LayerActivations(merge_streams(streams, dtype), attention)


def pad_and_stack_activations(layers: list[LayerTap], dtype: DTypeLike) -> LayerActivations:
    """Returns the layer activations from a list with one entry per layer.

    Tables of distances may differ in length; shorter ones are padded.
    """
    tables = [one.relative.table for _, attention in layers for one in attention.values() if one.relative]
    longest = max((len(table) for table in tables), default=0)
    layers = [
        (streams, {name: pad_distance_table(one, longest) for name, one in attention.items()})
        for streams, attention in layers
    ]
    return stack_layer_activations(jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers), dtype)


def pad_distance_table(operands: AttentionOperands, rows: int) -> AttentionOperands:
    """Returns the attention operands with their table of distances padded to `rows` rows, by copies of its last row."""
    relative = operands.relative
    if relative is None:
        return operands
    table_PHK = jnp.pad(relative.table, ((0, rows - len(relative.table)), (0, 0), (0, 0)), mode='edge')
    return operands._replace(relative=dataclasses.replace(relative, table=table_PHK))
