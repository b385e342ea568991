"""Values from inside the layers: outputs, for distillation, and attention's queries and keys, for pictures."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from efficient_attention.modules.attention import AttentionOperands
from efficient_attention.modules.layer import Streams, end

# A layer's streams and its attentions' operands, by their names.
LayerTap = tuple[Streams, dict[str, AttentionOperands]]


class Taps(NamedTuple):
    """Of all N layers of a stack, along a leading axis of each array.

    The weights of layer i's attention are `attention_weights(query[i], key[i], mechanism, ...)` with the mechanism of
    `layer_mechanisms` and, where the model has them, what its operands hold besides, such as `relative[i]`, the bias of
    `Stack.terms` and segments.

    Args:
        outputs: of each layer; of a reversible stack, the mean of its two streams after the layer.
        attention: queries, keys and relative terms, by the name of the sub-layer. With memory its keys stand first.
    """

    outputs_NBLD: Array
    attention: dict[str, AttentionOperands]


class Inside(NamedTuple):
    """What a student and its teacher are compared by beside their outputs.

    Args:
        states: the vectors of the embeddings and of each of the N layers, normed as those of the last one are.
        attention: of all N layers; None of layers without attention.
    """

    states_NBLD: Array
    attention: AttentionOperands | None


def taps_of(layers: LayerTap, dtype: DTypeLike) -> Taps:
    """The taps from those of all layers, stacked; outputs in the dtype of the stack's."""
    streams, attention = layers
    return Taps(end(streams, dtype), attention)


def taps_of_each(layers: list[LayerTap], dtype: DTypeLike) -> Taps:
    """The taps from those of each layer, whose tables of distances may differ in length."""
    tables = [one.relative.table for _, attention in layers for one in attention.values() if one.relative]
    longest = max((len(table) for table in tables), default=0)
    layers = [
        (streams, {name: lengthened(one, longest) for name, one in attention.items()}) for streams, attention in layers
    ]
    return taps_of(jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers), dtype)


def lengthened(operands: AttentionOperands, rows: int) -> AttentionOperands:
    """The operands with `rows` rows in their table of distances; copies of its last row fill it up."""
    relative = operands.relative
    if relative is None:
        return operands
    table_PHK = jnp.pad(relative.table, ((0, rows - len(relative.table)), (0, 0), (0, 0)), mode='edge')
    return operands._replace(relative=dataclasses.replace(relative, table=table_PHK))
