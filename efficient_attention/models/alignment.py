"""Computes the cross-attention weights of a decoder: which source tokens each target token attends to."""

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.attend import weights_with_options
from efficient_attention.attention.request import AnySegments, CallOptions
from efficient_attention.errors import InputError
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.encoder import mechanism_rng
from efficient_attention.modules.cross_attention import cross_options
from efficient_attention.modules.layer import CROSS_ATTENTION
from efficient_attention.modules.layer_context import EncodedSource, fold_into_key, make_context


def cross_weights(
    decoder: Decoder, tokens_BL: Array, segments_BL: AnySegments, other: EncodedSource, *, layer: int = -1
) -> Array:
    """Returns the cross-attention weights of one decoder layer, float32 [B, H, L, M].

    The weights at target position t belong to the prediction of token t + 1. For FAVOR, they are the implicit weights.

    Args:
        decoder: the decoder of an encoder-decoder.
        tokens_BL: the decoder's input, with the start symbol first.
        segments_BL: 0 = padding, whose weights are 0; an array [B, L] or `Lengths`.
        other: the result of `EncoderDecoder.encode`.
        layer: the layer's number; negative numbers count from the last layer. Ignored if all layers share one
            attention.

    Raises:
        InputError: the decoder reads the source only through its initial states, so there are no weights.
    """
    config = decoder.config
    if config.source_reading != 'layers':
        return source_reader_weights(decoder, tokens_BL, segments_BL, other)
    _, context = decoder.embedded(tokens_BL, segments_BL, other=other)
    _, activations = decoder.with_layer_activations(tokens_BL, segments_BL, other=other)
    number = range(config.layers)[layer]
    rng = fold_into_key(mechanism_rng(config, 0), number)
    context = context._replace(mechanism_rng=rng)
    operands = jax.tree.map(lambda leaf: leaf[number], activations.attention[CROSS_ATTENTION.name])
    options = operands.add_to_options(cross_options(config.cross_mechanism, context, CallOptions()))
    return weights_with_options(operands.query_BLHK, operands.key_BMHK, config.cross_mechanism, options)


def source_reader_weights(decoder: Decoder, tokens_BL: Array, segments_BL: AnySegments, other: EncodedSource) -> Array:
    """Returns the cross-attention weights of a recurrent decoder that attends to the source once, outside its
    layers.
    """
    config, operands = decoder.config, decoder.hidden_and_source_operands(tokens_BL, segments_BL, other=other)[1]
    if operands is None:
        raise InputError(
            f'model.source_reading is {config.source_reading!r}: the decoder does not attend to the source'
        )
    positions_BL = jnp.broadcast_to(jnp.arange(tokens_BL.shape[1]), tokens_BL.shape)
    rng = fold_into_key(mechanism_rng(config, 0), config.layers)
    context = make_context(segments_BL, positions_BL, mechanism_rng=rng, other=other)
    options = operands.add_to_options(cross_options(config.cross_mechanism, context, CallOptions()))
    return weights_with_options(operands.query_BLHK, operands.key_BMHK, config.cross_mechanism, options)
