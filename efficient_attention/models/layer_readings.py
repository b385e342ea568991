"""Returns what the self-attention of each layer reads: the arrays that the model hands to `attend`, and the weights."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from efficient_attention.attention import reference_backend
from efficient_attention.attention.attend import make_request, weights_with_options
from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.favor.definition import FAVOR
from efficient_attention.attention.features.definition import FeatureAttention
from efficient_attention.attention.logits.definition import PatternAttention
from efficient_attention.attention.lsh.definition import (
    LSH,
    chunks_and_buckets,
    layout_from_request,
    weights_of_chunks,
)
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.request import AnySegments, CallOptions, Lengths, Request, with_padding_zeroed
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import require
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.layer_stack import Stack, layer_mechanisms, layer_slice
from efficient_attention.models.segment_memory import AnyMemory
from efficient_attention.models.uneven_stack import UnevenStack
from efficient_attention.modules.attention import Attention, AttentionOperands
from efficient_attention.modules.global_tokens import NOBODY
from efficient_attention.modules.layer import ATTENTION
from efficient_attention.modules.layer_context import Context, make_context

QUERIES_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class LayerReading:
    """The self-attention of one layer on some rows, as the layer computed it.

    Attributes:
        number: the layer's number, from 0.
        mechanism: the layer's mechanism.
        operands: the arrays that the layer handed to `attend`. Keys and values of a memory come first.
        options: the other arguments of the call; the operands are among them.
        segments_BL: the segment of each query; 0 = padding.
        attention: the layer's attention module.
    """

    number: int
    mechanism: Mechanism
    operands: AttentionOperands
    options: CallOptions
    segments_BL: Array
    attention: Attention

    @property
    def by_blocks(self) -> bool:
        """Whether the weights of some queries can be computed without those of the others."""
        return isinstance(self.mechanism, PatternAttention)

    @property
    def by_heads(self) -> bool:
        """Whether `head_weights` computes the weights of one head without those of the others."""
        return isinstance(self.mechanism, LSH | FeatureAttention)

    @property
    def logit_scale(self) -> float | None:
        """The factor of query times key in the logits; None if the logits are no such products."""
        is_product = self.by_blocks and self.operands.additive_HK is None
        return self.operands.query_BLHK.shape[-1] ** -0.5 if is_product and self.mechanism.key_access.keys else None

    def value_norms(self) -> Array:
        """Returns the length of each value after the output projection of its head, float32 [B, H, M].

        The bias of the projection is left out, because it belongs to no token. Source: Kobayashi et al. 2020, arXiv
        2004.10102, section 3.
        """
        value_BMHK = self.operands.value_BMHK
        assert value_BMHK is not None
        zero_B1D = self.attention.merge_and_project_heads(jnp.zeros_like(value_BMHK[:, :1]))

        def of_head(is_head_H: Array) -> Array:
            own_BMHK = jnp.where(is_head_H[None, None, :, None], value_BMHK, 0)
            added_BMD = self.attention.merge_and_project_heads(own_BMHK) - zero_B1D
            return jnp.linalg.norm(added_BMD.astype(jnp.float32), axis=-1)

        return jnp.moveaxis(jax.lax.map(of_head, jnp.eye(value_BMHK.shape[2], dtype=bool)), 0, 1)

    def weights(self) -> Array:
        """Returns the weights of all queries, float32 [B, H, L, M].

        The rows of padding are 0. For FAVOR, they are the weights that its features imply.
        """
        if self.operands.global_tokens is not None:
            return self._weights_from(0, self.segments_BL.shape[1])
        return weights_with_options(self.operands.query_BLHK, self.operands.key_BMHK, self.mechanism, self.options)

    def head_weights(self, head: Any) -> Array:
        """Returns the weights of one head of LSH, FAVOR or linear attention, float32 [B, L, M]."""

        def part(x_BTHK: Array, axis: int = 2) -> Array:
            return jax.lax.dynamic_slice_in_dim(x_BTHK, head * x_BTHK.shape[axis] // heads, 1, axis)

        request = self._request()
        heads = request.query.shape[2]
        query, key, value = part(request.query), part(request.key), part(request.value)
        one = dataclasses.replace(request, query=query, key=key, value=value)
        if not isinstance(self.mechanism, LSH):
            return reference_backend.weights(one)[0][:, 0]
        layout = layout_from_request(request)
        chunks_BHTL, buckets_BHTL = chunks_and_buckets(request, layout)
        return weights_of_chunks(one, layout, part(chunks_BHTL, 1), part(buckets_BHTL, 1))[0][:, 0]

    def hash_rounds(self) -> tuple[Array, Array, int] | None:
        """Returns where the rounds of LSH attention put the tokens; None for other mechanisms.

        The first two arrays are the number of each token's bucket and chunk, int32 [B, H, T, L]. The last number is
        that of all chunks, n: a round finds the pairs whose key is in the query's chunk or the one before, modulo n.
        """
        if not isinstance(self.mechanism, LSH):
            return None
        request = self._request()
        layout = layout_from_request(request)
        chunks_BHTL, buckets_BHTL = chunks_and_buckets(request, layout)
        return buckets_BHTL, chunks_BHTL, layout.chunk_count

    def estimated_softmax(self, heads: np.ndarray) -> 'LayerReading | None':
        """Returns the softmax attention that FAVOR's features estimate, with only these heads; None for other
        mechanisms.
        """
        if not isinstance(self.mechanism, FAVOR) or self.mechanism.kernel != 'softmax' or not len(heads):
            return None
        softmax = parse_mechanism('causal' if self.mechanism.causal else 'full')
        query_BLHK, key_BMGK = self.operands.query_BLHK, self.operands.key_BMHK
        groups = heads * key_BMGK.shape[2] // query_BLHK.shape[2]
        own = self.operands._replace(query_BLHK=query_BLHK[:, :, heads], key_BMHK=key_BMGK[:, :, groups])
        options = dataclasses.replace(self.options, rng=None)
        return dataclasses.replace(self, mechanism=softmax, operands=own, options=options)

    def _request(self) -> Request:
        query_BLHK, key_BMHK = self.operands.query_BLHK, self.operands.key_BMHK
        return with_padding_zeroed(make_request(query_BLHK, key_BMHK, key_BMHK, self.mechanism, self.options))

    def weight_blocks(self, rows: int = QUERIES_AT_ONCE) -> Iterator[Array]:
        """Yields the weights of some queries at a time, float32 [B, H, at most `rows`, M], in order.

        So no array has all pairs of all heads. Mechanisms whose weights are not a distribution over the keys of a
        pattern, such as LSH and FAVOR, have one block with all queries.
        """
        length = self.segments_BL.shape[1]
        if not self.by_blocks or rows >= length:
            yield self.weights()
            return

        @jax.jit
        def block(operands: AttentionOperands, first: Any) -> Array:
            return dataclasses.replace(self, operands=operands)._weights_from(first, rows)

        for first in range(0, length, rows):
            start = min(first, length - rows)
            yield block(self.operands, jnp.int32(start))[:, :, first - start :]

    def _weights_from(self, first: Any, count: int) -> Array:
        """Returns the weights of `count` queries from number `first`, [B, H, count, M]."""

        def part(x: Any, axis: int = 1) -> Array:
            return jax.lax.dynamic_slice_in_dim(jnp.asarray(x), first, count, axis)

        operands, options = self.operands, self.options
        if isinstance(options.key_segments, Lengths):  # of queries and keys alike
            options = dataclasses.replace(options, key_segments=self.segments_BL)
        query_BlHK, segments_Bl = part(operands.query_BLHK), part(self.segments_BL)
        positions = options.query_positions
        positions = np.arange(self.segments_BL.shape[1], dtype=np.int32)[None] if positions is None else positions
        keys = np.arange(operands.key_BMHK.shape[1], dtype=np.int32)[None]
        options = dataclasses.replace(
            options,
            query_positions=part(jnp.asarray(positions)),
            key_positions=keys if options.key_positions is None else options.key_positions,
            query_segments=segments_Bl,
            centres=None if options.centres is None else part(options.centres),
        )
        if options.relative is not None:
            relative = dataclasses.replace(options.relative, query=part(options.relative.query))
            options = dataclasses.replace(options, relative=relative)
        if isinstance(options.bias, Array) and options.bias.ndim > 1 and options.bias.shape[-2] > 1:
            options = dataclasses.replace(options, bias=part(options.bias, options.bias.ndim - 2))
        tokens = operands.global_tokens
        if tokens is None:
            return weights_with_options(query_BlHK, operands.key_BMHK, self.mechanism, options)
        is_global_BL = tokens.is_global_BL & (self.segments_BL != NOBODY)
        parts = [
            weights_and_lse(
                query_BlHK,
                operands.key_BMHK,
                mechanism,
                dataclasses.replace(options, key_segments=jnp.where(is_read_BL, self.segments_BL, NOBODY)),
            )
            for mechanism, is_read_BL in ((self.mechanism, ~is_global_BL), (Softmax(), is_global_BL))
        ]
        whole = dataclasses.replace(options, key_segments=self.segments_BL)
        of_global_BHlL, _ = weights_and_lse(part(tokens.query_BLHK), tokens.key_BLHK, Softmax(), whole)
        return jnp.where(part(is_global_BL)[:, None, :, None], of_global_BHlL, merged_weights(parts))


def weights_and_lse(
    query_BLHK: Array, key_BMHK: Array, mechanism: Mechanism, options: CallOptions
) -> tuple[Array, Array]:
    """Returns softmax weights [B, H, L, M] and their log-sum-exp [B, H, L]."""
    request = make_request(query_BLHK, key_BMHK, key_BMHK, mechanism, options)
    weights_BHLM, lse_BHL = reference_backend.weights(with_padding_zeroed(request))
    assert lse_BHL is not None
    return weights_BHLM, lse_BHL


def merged_weights(parts: list[tuple[Array, Array]]) -> Array:
    """Returns the softmax weights over all keys, from weights and log-sum-exps over disjoint sets of them."""
    lses_pBHL = jnp.stack([lse_BHL for _, lse_BHL in parts])
    has_key_pBHL = lses_pBHL > MASKED / 2
    shares_pBHL = jnp.where(has_key_pBHL, jax.nn.softmax(lses_pBHL, axis=0), 0.0)
    return sum(share_BHL[..., None] * weights for share_BHL, (weights, _) in zip(shares_pBHL, parts, strict=True))


def layer_readings(
    model: Encoder | Decoder, tokens_BL: Array, segments_BL: AnySegments, **options: Any
) -> list[LayerReading]:
    """Returns what the self-attention of each layer reads in these rows.

    Layers whose heads have all been removed are left out.

    Args:
        model: an encoder, or a decoder without an encoder.
        tokens_BL: token ids.
        segments_BL: 0 = padding; 1, 2, ... = packed texts; an array [B, L] or `Lengths`.
        options: the keyword arguments of `Encoder.embedded` or `Decoder.embedded`, such as `token_types_BL`.

    Raises:
        InputError: the layers are recurrent, so they have no weights.
    """
    check_has_weights(model.config)
    x_BLD, context = model.embedded(tokens_BL, segments_BL, **options)
    stacks: Any = model.stack.stretches if isinstance(model.stack, UnevenStack) else [model.stack]
    found: list[LayerReading] = []
    for stack in stacks:
        x_BLD, readings, _ = stack_readings(stack, x_BLD, context, None)
        found += readings
    return found


def segment_readings(
    decoder: Decoder, tokens_BL: Array, segments_BL: Array, memory: AnyMemory
) -> tuple[list[LayerReading], AnyMemory]:
    """Returns what the self-attention of each layer reads in a text segment and the memory of earlier segments, and
    the memory after the segment.

    The first keys of each layer are those of the memory, the oldest first. The arguments are those of
    `Decoder.continue_from_memory`.
    """
    check_has_weights(decoder.config)
    x_BLD, context = decoder.embedded(tokens_BL, segments_BL)
    context = make_context(context.segments_BL, context.positions_BL)  # as in `Stack.continue_from_memory`
    assert isinstance(decoder.stack, Stack)
    _, readings, after = stack_readings(decoder.stack, x_BLD, context, memory)
    assert after is not None
    return readings, after


def stack_readings(
    stack: Stack, x_BLD: Array, context: Context, memory: AnyMemory | None
) -> tuple[Array, list[LayerReading], AnyMemory | None]:
    """Returns a stack's output, what its layers read, and the memory after the segment; None without memory."""
    context = context.with_shared_terms(stack.shared_terms(context.positions_BL if memory is None else None))
    x_BLD, handed_out = stack.run(x_BLD, context, memory, returns_activations=True)
    assert handed_out.activations is not None
    operands = handed_out.activations[1].get(ATTENTION.name)
    layers: Any = stack.parameter_layers()
    readings = []
    for place, mechanism in enumerate(layer_mechanisms(stack.config, stack.first) if operands else ()):
        number, layer = stack.first + place, layers[stack.config.layer_to_param_index[place]]
        before = None if memory is None else memory.layer_memory(layer_slice(memory.per_layer_arrays(), place))
        at_layer = context.layer_context(number, before)
        at_layer = at_layer._replace(memory=layer.attention_memory(ATTENTION, at_layer))
        mechanism, options = layer.attention.mechanism_and_options(at_layer, mechanism)
        own = layer_slice(operands, place)
        own = own._replace(key_BMHK=own.query_BLHK) if mechanism.requirements.shared_qk else own
        readings.append(
            LayerReading(number, mechanism, own, own.add_to_options(options), context.segments_BL, layer.attention)
        )
    after = None if memory is None else memory.next_memory(handed_out.new_memory, context.segments_BL)
    return x_BLD, readings, after


def check_has_weights(config: ModelConfig) -> None:
    """Raises InputError if the layers of a config are recurrent."""
    require(config.cell == 'none', 'model.cell', config.cell, "'none': recurrent layers have no attention weights")


def self_attention_weights(model: Encoder | Decoder, tokens_BL: Array, segments_BL: AnySegments) -> Array:
    """Returns the self-attention weights of all N layers, float32 [N, B, H, L, L]; see `layer_readings`.

    The function needs memory for all pairs of positions, so it is meant for pictures and short rows.

    Raises:
        InputError: the layers are recurrent, or have different numbers of heads.
    """
    weights = [reading.weights() for reading in layer_readings(model, tokens_BL, segments_BL)]
    heads = {one.shape[1] for one in weights}
    require(len(heads) < 2, 'model.layer_heads', model.config.layer_heads, 'equal numbers, to stack the weights')
    return jnp.stack(weights)
