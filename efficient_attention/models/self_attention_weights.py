"""Computes the self-attention weights of all layers of a decoder: which earlier tokens each token attends to."""

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.attend import weights_with_options
from efficient_attention.attention.request import AnySegments, CallOptions
from efficient_attention.errors import require
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.layer_stack import layer_mechanisms
from efficient_attention.modules.layer import ATTENTION


def self_attention_weights(decoder: Decoder, tokens_BL: Array, segments_BL: AnySegments) -> Array:
    """Returns the self-attention weights of all N layers, float32 [N, B, H, L, L]; for FAVOR, those that its
    features imply.

    The function needs memory for all pairs of positions, so it is meant for pictures and short rows.

    Args:
        decoder: a decoder whose layers attend.
        tokens_BL: token ids.
        segments_BL: 0 = padding, whose weights are 0; an array [B, L] or `Lengths`.

    Raises:
        InputError: the decoder has recurrent layers, which have no weights.
    """
    config = decoder.config
    require(config.cell == 'none', 'model.cell', config.cell, "'none': recurrent layers have no attention weights")
    _, context = decoder.embedded(tokens_BL, segments_BL)
    _, activations = decoder.with_layer_activations(tokens_BL, segments_BL)
    context = context.with_shared_terms(decoder.stack.shared_terms(context.positions_BL))
    weights = []
    for number, mechanism in enumerate(layer_mechanisms(config)):
        layer, read = context.layer_context(number), context.attend_segments
        operands = jax.tree.map(lambda leaf: leaf[number], activations.attention[ATTENTION.name])  # noqa: B023
        rng = None if mechanism.randomness.noise else layer.mechanism_rng  # noise is drawn only in training
        options = CallOptions(rng=rng, layer=number, bias=context.bias, query_segments=read, key_segments=read)
        options = operands.add_to_options(options)
        weights.append(weights_with_options(operands.query_BLHK, operands.key_BMHK, mechanism, options))
    return jnp.stack(weights)
