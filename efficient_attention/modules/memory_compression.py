"""Compresses tokens that segment memory evicts, and computes the loss that trains the compression (Rae et al. 2019,
arXiv 1911.05507).
"""

from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.attend import attend_with_options
from efficient_attention.attention.device_mesh import shard_activations
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.request import CallOptions
from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.attention import Attention
from efficient_attention.modules.dense_layer import Dense
from efficient_attention.modules.layer_constructors import linear
from efficient_attention.modules.layer_context import LayerMemory

Module = TypeVar('Module', bound=nnx.Module)
# Auxiliary layer losses: named float32 sums over rows and tokens, which are added over devices and layers.
AuxLosses = dict[str, Array]
RECONSTRUCTION = 'reconstruction'


def make_compressor(config: LayerConfig, rngs: nnx.Rngs) -> Dense | None:
    """Returns the dense layer [c x D, D] that compresses evicted tokens: a convolution of width and stride c tokens.

    The result is None if the config has no learned compression. The kernel starts as the mean of the c tokens, where
    the reconstruction loss has a gradient in every direction.
    """
    if config.compression != 'convolution':
        return None
    rate, width = config.compression_rate, config.width
    compressor = linear(config, rate * width, width, rngs, use_bias=False)
    compressor.kernel[...] = jnp.tile(jnp.eye(width) / rate, (rate, 1))
    return compressor


def compress(config: LayerConfig, compressor: Dense | None, leaving: LayerMemory) -> LayerMemory:
    """Returns L evicted tokens as L / c compressed vectors, each from c consecutive tokens.

    A compressed vector belongs to the text of its newest token, and only tokens of this text contribute. Tokens of
    earlier texts count as zeros in a convolution, and are excluded from a mean or maximum.

    Raises:
        ValueError: L is no multiple of the rate c, or the config compresses nothing.
    """
    rate, (rows, length, width) = config.compression_rate, leaving.states_BMD.shape
    if length % rate or config.compression == 'none':
        raise ValueError(
            f'cannot compress a segment of {length} tokens with model.compression {config.compression!r} at rate {rate}'
        )
    segments_BMc = leaving.segments_BM.reshape(rows, -1, rate)
    newest_BM = segments_BMc[:, :, -1]
    states_BMcD = shard_activations(leaving.states_BMD.reshape(rows, -1, rate, width), 'BMcD')
    is_of_text_BMc1 = (segments_BMc == newest_BM[:, :, None])[..., None]
    if config.compression == 'max':
        states_BMD = jnp.where(is_of_text_BMc1, states_BMcD, jnp.finfo(states_BMcD.dtype).min).max(axis=2)
        return LayerMemory(shard_activations(states_BMD, 'BMD'), newest_BM)
    states_BMcD = jnp.where(is_of_text_BMc1, states_BMcD, jnp.zeros_like(states_BMcD))
    if config.compression == 'mean':
        total_BMD = states_BMcD.astype(jnp.float32).sum(axis=2)
        states_BMD = (total_BMD / is_of_text_BMc1.astype(jnp.float32).sum(axis=2)).astype(states_BMcD.dtype)
        return LayerMemory(shard_activations(states_BMD, 'BMD'), newest_BM)
    assert compressor is not None
    states_BMD = compressor(jax.lax.collapse(states_BMcD, 2)).astype(leaving.states_BMD.dtype)
    return LayerMemory(shard_activations(states_BMD, 'BMD'), newest_BM)


def reconstruction_error(
    attention: Attention, mechanism: Mechanism, segment: LayerMemory, leaving: LayerMemory, compressed: LayerMemory
) -> Array:
    """Returns the squared difference between a segment's attention to evicted tokens and its attention to their
    compressed vectors.

    The difference of the heads' outputs is squared, averaged over heads and head width, and summed in float32 over rows
    and tokens. Both attentions use only contents, without positions or Transformer-XL's u and v. They read all keys of
    a token's text (algorithm 2 of the paper).

    Args:
        attention: the layer's self-attention.
        mechanism: the layer's mechanism; its pattern is ignored.
        segment: the layer's normalised input, from which queries are computed.
        leaving: the evicted tokens, normalised likewise.
        compressed: the compressed vectors, normalised likewise.
    """
    x_BLD, segments_BL = segment

    def read(slots: LayerMemory) -> Array:
        operands = attention.project_query_key_value(x_BLD, slots.states_BMD.astype(x_BLD.dtype), mechanism)
        options = CallOptions(
            query_segments=segments_BL,
            key_segments=slots.segments_BM,
            additive=attention.additive_vector(),
            backend=attention.config.attention_backend,
        )
        return attend_with_options(*operands, mechanism.without_pattern(), options)[0]

    difference_BLHK = read(leaving).astype(jnp.float32) - read(compressed).astype(jnp.float32)
    return jnp.square(difference_BLHK).mean(axis=(2, 3)).sum()


def stop_gradient_to_params(module: Module) -> Module:
    """Returns the same module with parameters that receive no gradient."""
    graph, parameters = nnx.split(module)
    return nnx.merge(graph, jax.lax.stop_gradient(parameters))


def auxiliary_losses(config: LayerConfig) -> dict[str, float]:
    """Returns the name of each auxiliary layer loss of a decoder with memory, and the factor by which it enters the
    total loss.

    Each loss is a mean over tokens before it is multiplied by its factor.
    """
    is_told = config.compressed_length > 0 and config.reconstruction_weight > 0.0
    return {RECONSTRUCTION: config.reconstruction_weight} if is_told else {}


def sum_over_layers(aux_losses: AuxLosses) -> AuxLosses:
    """Returns the auxiliary layer losses, each summed over its leading layer axis."""
    return {name: sums_N.sum(axis=0) for name, sums_N in aux_losses.items()}
