"""Collects the activations of all layers: outputs for distillation, and attention queries and keys for plots."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from efficient_attention.modules.attention import AttentionOperands
from efficient_attention.modules.layer import Streams, merge_streams

# The activations of one layer: its residual streams, and the operands of its attentions by name.
LayerOutputAndOperands = tuple[Streams, dict[str, AttentionOperands]]


class LayerActivations(NamedTuple):
    """The activations of all N layers of a stack; the first axis of each array is the layer.

    The attention weights of layer i are `attention_weights(query[i], key[i], mechanism, ...)`, with the mechanism of
    `layer_mechanisms`. Other operands are passed too, if the model has them: `relative[i]`, segments, and the bias of
    `Stack.shared_terms`.

    Args:
        outputs_NBLD: the output of each layer; in a reversible stack, the mean of its two streams after the layer.
        attention: queries, keys and relative terms, by the name of the sub-layer. The keys of a memory come first.
    """

    outputs_NBLD: Array
    attention: dict[str, AttentionOperands]


class DistillationActivations(NamedTuple):
    """The activations by which distillation compares a student with its teacher: hidden states and attention operands.

    Args:
        states_NBLD: the embeddings and the outputs of the N layers, all with the norm of the last output.
        attention: the attention operands of all N layers; None if the layers have no attention.
    """

    states_NBLD: Array
    attention: AttentionOperands | None


def stack_layer_activations(layers: LayerOutputAndOperands, dtype: DTypeLike) -> LayerActivations:
    """Returns the layer activations from arrays that are already stacked over the layers; outputs have the given
    dtype.
    """
    streams, attention = layers
    return LayerActivations(merge_streams(streams, dtype), attention)


def pad_and_stack_activations(layers: list[LayerOutputAndOperands], dtype: DTypeLike) -> LayerActivations:
    """Returns the layer activations, stacked over the layers from a list with one entry per layer.

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
    """Returns the attention operands with the table of relative distances padded to `rows` rows by repeating its last
    row.
    """
    relative = operands.relative
    if relative is None:
        return operands
    table_PHK = jnp.pad(relative.table, ((0, rows - len(relative.table)), (0, 0), (0, 0)), mode='edge')
    return operands._replace(relative=dataclasses.replace(relative, table=table_PHK))
