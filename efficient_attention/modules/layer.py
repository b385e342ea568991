"""A transformer layer: a sequence of sub-layers such as attention and feed-forward, each with residual, norm and
dropout.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from efficient_attention.attention.cache import Cache
from efficient_attention.attention.cache_spec import CacheSpec
from efficient_attention.attention.cross_attention_cache import CrossAttentionKeys
from efficient_attention.attention.device_mesh import shard_activations
from efficient_attention.attention.dropout import dropout
from efficient_attention.attention.features.cross_attention_sums import CrossAttentionSums
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.request import AnySegments
from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.attention import Attention, AttentionOperands
from efficient_attention.modules.cross_attention import CrossAttention
from efficient_attention.modules.feed_forward import FeedForward
from efficient_attention.modules.layer_constructors import make_norm
from efficient_attention.modules.layer_context import (
    CompressedLayerMemory,
    Context,
    ContextOptions,
    LayerMemory,
    fold_into_key,
    make_context,
)
from efficient_attention.modules.memory_compression import (
    RECONSTRUCTION,
    AuxLosses,
    compress,
    make_compressor,
    reconstruction_error,
    stop_gradient_to_params,
)
from efficient_attention.modules.recurrent_sub_layer import RecurrentSubLayer
from efficient_attention.recurrence.run_cell import RecurrentState

# The sequences from which an attention takes its keys and values.
ITSELF = 'itself'  # the input of the attention sub-layer
MEMORY = 'memory'  # the layer's inputs of earlier text segments, if the call has a memory
OTHER = 'other'  # the encoded source, such as an encoder's output

# The kinds of values that a sub-layer caches during incremental decoding.
GROWING = 'growing'  # keys and values of all tokens so far
FIXED = 'fixed'  # keys and values of the encoded source, computed once
STATE = 'state'  # the state of a recurrent cell

# The residual streams of a layer, [B, L, D] each: one in a plain stack, two in a reversible stack.
Streams = tuple[Array, ...]


@dataclasses.dataclass(frozen=True)
class SubLayer:
    """The description of a sub-layer: attention, cross-attention, recurrent cell or feed-forward.

    Args:
        name: name of the sub-layer's module in the layer, used in parameter paths.
        keys_from: an attention's sources of keys and values, in order of concatenation; () = no attention.
        dropout: number folded into the layer's PRNG key for output dropout; all such numbers in a layer differ.
        inner_dropout: likewise for dropout on attention weights, on a recurrent state, or on feed-forward activations.
        is_recurrent: whether the sub-layer reads its input position by position, with a state.
        is_constant: whether the sub-layer has no heads or units, only a bias.
    """

    name: str
    keys_from: tuple[str, ...] = ()
    dropout: int = 0
    inner_dropout: int = 0
    is_recurrent: bool = False
    is_constant: bool = False

    @property
    def norm_name(self) -> str:
        """The attribute name of the sub-layer's norm in the layer."""
        return f'{self.name}_norm'

    @property
    def cache_kind(self) -> str:
        """The kind of values that the sub-layer caches in decoding: `GROWING`, `FIXED` or `STATE`; '' if it caches
        nothing.
        """
        if self.is_recurrent:
            return STATE
        return FIXED if OTHER in self.keys_from else GROWING if self.keys_from else ''


ATTENTION = SubLayer('attention', keys_from=(MEMORY, ITSELF), dropout=1, inner_dropout=0)
FEED_FORWARD = SubLayer('feed_forward', dropout=2, inner_dropout=5)
RECURRENT = SubLayer('recurrent', is_recurrent=True, dropout=1, inner_dropout=0)
CROSS_ATTENTION = SubLayer('cross_attention', keys_from=(OTHER,), dropout=4, inner_dropout=3)

SELF_ATTENTION_LAYER = (ATTENTION, FEED_FORWARD)
CROSS_ATTENTION_LAYER = (ATTENTION, CROSS_ATTENTION, FEED_FORWARD)  # Vaswani et al. 2017, arXiv 1706.03762, section 3.1


def sub_layers_of(config: LayerConfig, *, reads_other: bool = False) -> tuple[SubLayer, ...]:
    """Returns the sub-layers of a layer with this config; `reads_other` adds a cross-attention."""
    mixing = ATTENTION if config.cell == 'none' else RECURRENT
    return (mixing, *([CROSS_ATTENTION] * reads_other), *([FEED_FORWARD] * config.feed_forward))


# The type of a sub-layer's cached values during decoding. Self-attention caches `Cache`, in its mechanism's form.
# Cross-attention caches `CrossAttentionKeys` or `CrossAttentionSums`; a recurrent cell caches `RecurrentState`.
Kept = Cache | CrossAttentionKeys | CrossAttentionSums | RecurrentState


class Layer(nnx.Module):
    """A transformer layer: runs its sub-layers in sequence, [B, L, D] -> [B, L, D]; by default the sub-layers from
    `sub_layers_of`.

    The config field `norm` places the norm. 'post': x = norm(x + dropout(f(x))) as in BERT; 'pre': x = x +
    dropout(f(norm(x))); 'none': no norm.

    Without `residual`, the sum omits its first term x.
    """

    def __init__(self, config: LayerConfig, *, sub_layers: tuple[SubLayer, ...] | None = None, rngs: nnx.Rngs) -> None:
        self.config, self.sub_layers = config, sub_layers or sub_layers_of(config)
        for sub in self.sub_layers:
            setattr(self, sub.name, make_module(config, sub, rngs))
            if config.norm != 'none':
                setattr(self, sub.norm_name, make_norm(config, config.width, rngs))
        self.compressor = make_compressor(config, rngs)

    def __call__(
        self,
        x_BLD: Array,
        segments_BL: AnySegments,
        positions_BL: Array,
        *,
        mechanism: Mechanism | None = None,
        **options: Unpack[ContextOptions],
    ) -> Array:
        """Returns the layer's output [B, L, D], without the operands that `run` also returns.

        `segments_BL` is an array or `Lengths`. The other arguments are the fields of `Context`.
        """
        return self.run((x_BLD,), make_context(segments_BL, positions_BL, **options), mechanism)[0][0]

    def run(
        self, streams: Streams, context: Context, mechanism: Mechanism | None = None
    ) -> tuple[Streams, dict[str, Any]]:
        """Returns the residual streams after all sub-layers; and the attention operands or recurrent states of the
        sub-layers, by name.

        `mechanism` is the mechanism of self-attention; by default it is the config's first mechanism.
        """
        operands: dict[str, Any] = {}
        for sub in self.sub_layers:
            with jax.named_scope(sub.name):
                x_BLD = self.read(sub, streams[-1])
                out_BLD, used = self.apply(sub, x_BLD, context, mechanism)
                streams = self.add_residual(sub, streams, out_BLD, context.rng)
            operands |= {} if used is None else {sub.name: used}
        return streams, operands

    def read(self, sub: SubLayer, x_BLD: Array) -> Array:
        """Returns the input of a sub-layer: the residual stream, which a 'pre' layer normalises."""
        return shard_activations(getattr(self, sub.norm_name)(x_BLD) if self.config.norm == 'pre' else x_BLD, 'BLD')

    def apply(
        self, sub: SubLayer, x_BLD: Array, context: Context, mechanism: Mechanism | None
    ) -> tuple[Array, AttentionOperands | tuple[RecurrentState, ...] | None]:
        """Returns the output of a sub-layer, and its queries and keys or its recurrent states."""
        module, rng = getattr(self, sub.name), fold_into_key(context.rng, sub.inner_dropout)
        if not sub.cache_kind:
            return module(x_BLD, rng=rng), None
        if sub.is_recurrent:
            rng = rng if context.state_rng is None else fold_into_key(context.state_rng, sub.inner_dropout)
        if sub.is_recurrent or OTHER in sub.keys_from:
            return module.run(x_BLD, context._replace(rng=rng))
        memory = self.attention_memory(sub, context) if MEMORY in sub.keys_from else None
        return module.run(x_BLD, context._replace(rng=rng, memory=memory), mechanism)

    def add_residual(self, sub: SubLayer, streams: Streams, out_BLD: Array, rng: Array | None = None) -> Streams:
        """Returns the residual streams after the sum x + dropout(f(x)), which a 'post' layer normalises.

        Two streams become (x1, x2) -> (x2, x1 + dropout(f(x2))).
        """
        out_BLD = self.sub_layer_dropout(sub, out_BLD, rng)
        total_BLD = residual_sum(streams, out_BLD) if self.config.residual else out_BLD.astype(streams[0].dtype)
        total_BLD = getattr(self, sub.norm_name)(total_BLD) if self.config.norm == 'post' else total_BLD
        return (*streams[1:], total_BLD)

    def sub_layer_dropout(self, sub: SubLayer, out_BLD: Array, rng: Array | None = None) -> Array:
        """Returns the output of a sub-layer after dropout."""
        return shard_activations(dropout(out_BLD, self.config.dropout_rate, fold_into_key(rng, sub.dropout)), 'BLD')

    def reversible_branch(
        self, sub: SubLayer, x_BLD: Array, context: Context, mechanism: Mechanism | None = None
    ) -> Array:
        """Returns the term that a sub-layer adds to the residual sum of a reversible layer, dropout(f(norm(x)))."""
        with jax.named_scope(sub.name):
            out_BLD, _ = self.apply(sub, self.read(sub, x_BLD), context, mechanism)
            return self.sub_layer_dropout(sub, out_BLD, context.rng)

    def run_with_cache(
        self, streams: Streams, context: Context, spec: CacheSpec, before: Iterator[Kept]
    ) -> tuple[Streams, list[Kept], dict[str, AttentionOperands]]:
        """Returns the residual streams of new tokens in incremental decoding, the new cached values, and the attention
        operands that `run` also returns.

        Dropout is off.

        Args:
            streams: the inputs of the new tokens.
            context: segments of the new tokens, and their positions in the text. PRNG keys for dropout are ignored.
            spec: specification of the self-attention cache.
            before: iterator over the cached values of earlier tokens, one per sub-layer with a `cache_kind`. This layer
                consumes its values; values of later layers may follow.
        """
        context = context._replace(rng=None, state_rng=None, product_BLX=None)
        after: list[Kept] = []
        operands: dict[str, AttentionOperands] = {}
        for sub in self.sub_layers:
            module, x_BnD, used = getattr(self, sub.name), self.read(sub, streams[-1]), None
            if not sub.cache_kind:
                out_BnD = module(x_BnD)
            elif sub.cache_kind == GROWING:
                out_BnD, cache, used = module.run_with_cache(x_BnD, context, spec, next(before))
                after.append(cache)
            elif sub.cache_kind == FIXED:
                fixed = next(before)
                out_BnD, used = module.run_with_cache(x_BnD, context, fixed)
                after.append(fixed)
            else:
                out_BnD, state = module.run_with_cache(x_BnD, context, next(before))
                after.append(state)
            streams = self.add_residual(sub, streams, out_BnD)
            operands |= {} if used is None else {sub.name: used}
        return streams, after, operands

    def attention_memory(self, sub: SubLayer, context: Context) -> LayerMemory | None:
        """Returns the memory that self-attention reads, normalised like the layer's input; None if the context has no
        memory.
        """
        memory = context.memory
        memory = memory.all_memory_slots() if isinstance(memory, CompressedLayerMemory) else memory
        assert memory is None or isinstance(memory, LayerMemory)
        return None if memory is None else self.normalise_memory_vectors(sub, memory)

    def memory_and_aux_losses(
        self, x_BLD: Array, context: Context, mechanism: Mechanism | None = None
    ) -> tuple[tuple[Array, Array | None], AuxLosses]:
        """Returns what the layer adds to the next memory (its input and compressed evicted tokens), and its auxiliary
        losses.

        The compressed evicted tokens are [B, L / c, D]; they are None without compression. The auxiliary loss
        'reconstruction' trains a learned compressor, see `reconstruction_error`. Its gradient reaches only the
        compressor.
        """
        memory = context.memory
        if not isinstance(memory, CompressedLayerMemory):
            return (x_BLD, None), {}
        read_BLD, memory = jax.lax.stop_gradient((x_BLD, memory))
        leaving = memory.evicted_tokens(read_BLD, context.segments_BL)
        compressed = compress(self.config, self.compressor, leaving)
        if not self.config.reconstruction_weight:
            return (x_BLD, compressed.states_BMD), {}
        (sub,), layer = (sub for sub in self.sub_layers if MEMORY in sub.keys_from), stop_gradient_to_params(self)
        queries = LayerMemory(read_BLD, context.segments_BL)
        read = (layer.normalise_memory_vectors(sub, slots) for slots in (queries, leaving, compressed))
        error = reconstruction_error(getattr(layer, sub.name), mechanism or self.config.mechanisms[0], *read)
        return (x_BLD, compressed.states_BMD), {RECONSTRUCTION: error}

    def input_product(self, x_BLD: Array) -> Array:
        """Returns the product of the layer's input with the input matrices of its recurrent cell, [B, L, g x U] for g
        gates of U units.
        """
        sub = self.sub_layers[0]
        x_BLD = getattr(self, sub.norm_name)(x_BLD) if self.config.norm == 'pre' else x_BLD
        return getattr(self, sub.name).input_product(x_BLD)

    def normalise_memory_vectors(self, sub: SubLayer, slots: LayerMemory) -> LayerMemory:
        """Returns a memory whose vectors are normalised like the input of the sub-layer."""
        if self.config.norm != 'pre':
            return slots
        return slots._replace(states_BMD=getattr(self, sub.norm_name)(slots.states_BMD))


def make_module(config: LayerConfig, sub: SubLayer, rngs: nnx.Rngs) -> nnx.Module:
    """Returns the NNX module of a sub-layer: attention, recurrent cell, feed-forward, or a constant."""
    if sub.is_constant:
        return ConstantSubLayer(config)
    if sub.is_recurrent:
        return RecurrentSubLayer(config, rngs=rngs)
    if sub.keys_from:
        return CrossAttention(config, rngs=rngs) if OTHER in sub.keys_from else Attention(config, rngs=rngs)
    return FeedForward(config, rngs=rngs)


class ConstantSubLayer(nnx.Module):
    """A sub-layer whose heads or units have all been removed: returns the same learned bias vector for each token, [B,
    L, D].
    """

    def __init__(self, config: LayerConfig) -> None:
        self.bias = nnx.Param(jnp.zeros(config.width, jnp.float32))

    def __call__(self, x_BLD: Array, *, rng: Array | None = None) -> Array:  # noqa: ARG002  there is no inner dropout
        """Returns the learned vector at every position; only the shape and the dtype of the input are used."""
        bias_D = jnp.asarray(self.bias[...]).astype(x_BLD.dtype)
        return jax.lax.broadcast_in_dim(bias_D, x_BLD.shape, (x_BLD.ndim - 1,))


def residual_sum(streams: Streams, out_BLD: Array) -> Array:
    """Returns the residual sum x + f(x), or x1 + f(x2) for two streams, in the dtype of the streams."""
    return streams[0] + out_BLD.astype(streams[0].dtype)


def initial_streams(x_BLD: Array, *, is_reversible: bool) -> Streams:
    """Returns the residual streams before the first layer: the input, or two float32 copies in a reversible stack.

    models/reversible.py explains why two streams are float32.
    """
    return (x_BLD.astype(jnp.float32),) * 2 if is_reversible else (x_BLD,)


def merge_streams(streams: Streams, dtype: DTypeLike) -> Array:
    """Returns the output of a layer stack [B, L, D]: its residual stream, or the mean of two streams."""
    return (streams[0] if len(streams) == 1 else 0.5 * (streams[0] + streams[1])).astype(dtype)
