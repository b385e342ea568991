"""Gates of attention heads: factors of what each head adds, to switch heads off or to measure their importance."""

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.layer_stack import Stack
from efficient_attention.models.uneven_stack import layer_sizes

Head = tuple[int, int]  # numbers of the layer and of the head, from 0


class HeadGates(nnx.Variable):
    """The gates of a stack's self-attention heads, float32 [N, H]; no optimizer trains them."""


def set_head_gates(model: nnx.Module, gates_NH: Array | np.ndarray) -> None:
    """Multiplies the result of each self-attention head by a gate, before the output projection.

    With a gate of 1, the model is unchanged; with 0, the head's values are zeroed. The gates hold in every stack and
    for every attention backend. A gate's gradient is the importance of its head (Michel et al. 2019, arXiv 1905.10650,
    section 2.3).

    Args:
        model: a module with one encoder or one decoder.
        gates_NH: one number per layer and head; layers with fewer heads use the first numbers of their row.

    Raises:
        InputError: the model has two stacks or recurrent layers.
        ValueError: the shape is not [N, H].
    """
    stacks = [module for _, module in nnx.iter_graph(model) if isinstance(module, Stack)]
    starts = [stack.first for stack in stacks]
    if len({*starts}) != len(starts):
        raise InputError(
            'gates of heads need a model with one stack of layers, and this one has an encoder and a decoder'
        )
    if any(stack.config.cell != 'none' for stack in stacks):
        raise InputError('gates of heads need attention layers, and the layers are recurrent')
    layers, heads = sum(stack.config.layers for stack in stacks), max(stack.config.heads for stack in stacks)
    if np.ndim(gates_NH) != 2 or len(gates_NH) != layers or np.shape(gates_NH)[1] < heads:
        raise ValueError(f'gates_NH is {np.shape(gates_NH)}; the model has {layers} layers of up to {heads} heads')
    for stack in stacks:
        stack.head_gates = nnx.data(HeadGates(jnp.asarray(gates_NH, jnp.float32)))


def parse_heads(text: str) -> tuple[Head, ...]:
    """Returns the heads of a text such as '3.1,4.7': layer 3 head 1, layer 4 head 7; numbers start at 0.

    Raises:
        InputError: the text has another form.
    """
    if re.fullmatch(r'\s*\d+\.\d+\s*(,\s*\d+\.\d+\s*)*', text) is None:
        raise InputError(f'{text!r} is no list of heads; write LAYER.HEAD with commas, such as 3.1,4.7')
    layers_and_heads = (part.split('.') for part in text.split(','))
    return tuple((int(layer), int(head)) for layer, head in layers_and_heads)


def gates_without(config: ModelConfig, heads: Sequence[Head]) -> np.ndarray:
    """Returns gates [N, H] that are 0 for these heads and 1 for the others.

    Raises:
        InputError: the model has no such layer or head.
    """
    sizes = layer_sizes(config)
    counts = [sizes[index][0] for index in config.layer_to_param_index]
    gates_NH = np.ones((config.layers, config.heads), np.float32)
    for layer, head in heads:
        if layer >= config.layers:
            raise InputError(f'there is no layer {layer}; the model has layers 0 to {config.layers - 1}')
        if head >= counts[layer]:
            raise InputError(f'there is no head {layer}.{head}; layer {layer} has {counts[layer]} heads, from 0')
        gates_NH[layer, head] = 0.0
    return gates_NH


def with_head_gates(graph: nnx.GraphDef, params: Any, gates_NH: np.ndarray) -> tuple[nnx.GraphDef, Any]:
    """Returns a model, split into its graph and a pure dict of arrays, with gates; see `set_head_gates`."""
    model = nnx.merge(graph, params)
    set_head_gates(model, jax.device_get(gates_NH))
    graph, state = nnx.split(model)
    return graph, nnx.to_pure_dict(state)
