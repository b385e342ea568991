"""The decoder: embeddings, a stack of causal layers, and an output layer with the logits of the next token."""

from typing import Any, Protocol, TypedDict, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.device_mesh import shard_activations
from efficient_attention.attention.foreign_keywords import refuse_foreign_keywords
from efficient_attention.attention.request import AnySegments, segments_and_lengths
from efficient_attention.config.model import ModelConfig, check_can_attend_to_memory, check_memory
from efficient_attention.errors import InputError, require
from efficient_attention.models.adaptive_softmax import AdaptiveHead, SingleTokenTable, TokenTable, VocabularyCluster
from efficient_attention.models.embeddings import Embeddings, default_positions
from efficient_attention.models.encoder import apply_final_norm, mechanism_rng
from efficient_attention.models.layer_activations import LayerActivations
from efficient_attention.models.layer_stack import Stack
from efficient_attention.models.recurrent_decoder_attention import (
    RecurrentDecoderAttention,
    has_recurrent_decoder_attention,
)
from efficient_attention.models.segment_memory import AnyMemory
from efficient_attention.modules.attention import AttentionOperands
from efficient_attention.modules.embedding_table import table_logits
from efficient_attention.modules.layer import SubLayer
from efficient_attention.modules.layer_constructors import linear, make_norm
from efficient_attention.modules.layer_context import Context, EncodedSource, fold_into_key, make_context
from efficient_attention.modules.memory_compression import AuxLosses


class DecoderOptions(TypedDict, total=False):
    """The types of the keyword arguments of `Decoder.embedded`, which documents them."""

    positions_BL: Array | None
    rng: Array | None
    step: Array | int
    other: EncodedSource | None


class Decoder(nnx.Module):
    """A causal model that maps token ids to the logits of each next token, [B, L] -> [B, L, V].

    Args:
        config: sizes and choices.
        sub_layers: the sub-layers of each layer; by default from the config. With a cross-attention, this is the
            decoder of an encoder-decoder.

    Raises:
        InputError: an attention of the config reads later positions.
    """

    def __init__(self, config: ModelConfig, *, sub_layers: tuple[SubLayer, ...] | None = None, rngs: nnx.Rngs) -> None:
        check_causal(config)
        check_memory(config)
        self.config = config
        self.embeddings = Embeddings(config, rngs=rngs)
        self.stack = Stack(config, causal=True, sub_layers=sub_layers, rngs=rngs)
        # A pre-norm stack needs a final norm, because its output is an unnormalised residual sum.
        self.norm = make_norm(config, config.width, rngs) if config.norm == 'pre' else None
        self.source = RecurrentDecoderAttention(config, rngs=rngs) if has_recurrent_decoder_attention(config) else None
        self.head: OutputHead = make_head(config, rngs)

    @refuse_foreign_keywords
    def __call__(self, tokens_BL: Array, segments_BL: AnySegments, **options: Unpack[DecoderOptions]) -> Array:
        """Returns float32 logits [B, L, V]; the logits at position t depend only on tokens 0 ... t.

        The arguments are the same as for `embedded`.
        """
        return self.logits(self.hidden(tokens_BL, segments_BL, **options))

    def hidden(self, tokens_BL: Array, segments_BL: AnySegments, **options: Unpack[DecoderOptions]) -> Array:
        """Returns the final hidden states [B, L, D] after the last norm, from which `logits` computes the logits.

        Hidden states at position t depend on tokens 0 ... t. The arguments are the same as for `embedded`.
        """
        return self.hidden_and_source_operands(tokens_BL, segments_BL, **options)[0]

    def hidden_and_source_operands(
        self, tokens_BL: Array, segments_BL: AnySegments, **options: Unpack[DecoderOptions]
    ) -> tuple[Array, AttentionOperands | None]:
        """Returns the final hidden states; and the queries and keys of the attention to the source, if this attention
        is outside the layers.

        The queries and keys are None without such an attention. The arguments are the same as for `embedded`.
        """
        x_BLD, context = self.embedded(tokens_BL, segments_BL, **options)
        if self.source is None:
            return self.normed(self.stack(x_BLD, context), options.get('rng')), None
        return self.source(self.stack, self.normed, x_BLD, context)

    def with_layer_activations(
        self, tokens_BL: Array, segments_BL: AnySegments, **options: Unpack[DecoderOptions]
    ) -> tuple[Array, LayerActivations]:
        """Returns the final hidden states and the layer activations: the outputs, queries and keys of all layers.

        Raises:
            InputError: the decoder reads its source outside its layers.
        """
        check_layer_activations(self)
        x_BLD, context = self.embedded(tokens_BL, segments_BL, **options)
        x_BLD, activations = self.stack.with_layer_activations(x_BLD, context)
        return self.normed(x_BLD, options.get('rng')), activations

    def embedded(
        self,
        tokens_BL: Array,
        segments_BL: AnySegments,
        *,
        positions_BL: Array | None = None,
        rng: Array | None = None,
        step: Array | int = 0,
        other: EncodedSource | None = None,
    ) -> tuple[Array, Context]:
        """Returns the token embeddings, and the context with the stack's other inputs, such as segments and PRNG keys.

        Args:
            tokens_BL: ids below V.
            segments_BL: 0 = padding; 1, 2, ... = packed texts, which do not attend to each other; an array [B, L] or
                `Lengths`.
            positions_BL: 0, 1, ... by default; below `max_length` if positions are a learned table.
            rng: PRNG key, or one per row; enables dropout.
            step: training step, which determines the samples of random mechanisms; 0 outside training.
            other: the sequence that cross-attention reads.
        """
        if positions_BL is None:
            positions_BL = default_positions(self.config, tokens_BL)
        x_BLD = self.embeddings(tokens_BL, jnp.zeros_like(tokens_BL), positions_BL, rng=fold_into_key(rng, 0))
        draws = fold_into_key(rng, 1), mechanism_rng(self.config, step)
        context = make_context(segments_BL, positions_BL, other=other)
        return x_BLD, context._replace(rng=draws[0], mechanism_rng=draws[1])

    def normed(self, x_BLD: Array, rng: Array | None = None) -> Array:
        """Returns the final hidden states: the last layer's output after the final norm and dropout.

        `rng` (a PRNG key, or one per row) enables dropout.
        """
        return apply_final_norm(self.config, self.norm, x_BLD, rng)

    def continue_from_memory(
        self, tokens_BL: Array, segments_BL: AnySegments, memory: AnyMemory, *, rng: Array | None = None
    ) -> tuple[Array, AnyMemory]:
        """Returns the hidden states of a text segment that follows the segments in `memory`, and the memory after this
        segment.

        The arguments are the same as for `continue_with_aux_losses`.
        """
        hidden_BLD, memory, _ = self.continue_with_aux_losses(tokens_BL, segments_BL, memory, rng=rng)
        return hidden_BLD, memory

    def continue_with_aux_losses(
        self, tokens_BL: Array, segments_BL: AnySegments, memory: AnyMemory, *, rng: Array | None = None
    ) -> tuple[Array, AnyMemory, AuxLosses]:
        """Returns the hidden states of a text segment, the memory after it, and the auxiliary layer losses as named
        sums.

        The sums run over rows, tokens and layers.

        Args:
            tokens_BL: ids below V.
            segments_BL: 0 = padding; otherwise the text's number. Memory tokens of the same text have the same number.
                An array [B, L], or `Lengths` if all tokens belong to text 1.
            memory: the memory of earlier segments, of any length; `empty_memory` at the start. No gradient flows into
                it. With compressed memory, L must be a multiple of `compression_rate`. Padding occupies memory
                positions like tokens do, so use it only after the end of a row's text.
            rng: PRNG key, or one per row; enables dropout.

        Raises:
            InputError: the attention, positions or stack of the config do not support memory.
        """
        check_can_attend_to_memory(self.config)
        array_BL, _ = segments_and_lengths(segments_BL, tokens_BL.shape[1])
        positions_BL = default_positions(self.config, tokens_BL)
        x_BLD = self.embeddings(tokens_BL, jnp.zeros_like(tokens_BL), positions_BL, rng=fold_into_key(rng, 0))
        x_BLD, memory, aux_losses = self.stack.continue_from_memory(x_BLD, array_BL, memory, rng=fold_into_key(rng, 1))
        return self.normed(x_BLD, rng), memory, aux_losses

    @jax.named_scope('head')
    def logits(self, hidden_BLD: Array) -> Array:
        """Returns float32 logits [B, L, V] from the final hidden states of all or some positions.

        With `adaptive_cutoffs`, the results are log-probabilities.
        """
        return self.head(hidden_BLD, self.embeddings.token)


class OutputHead(Protocol):
    """The interface of a decoder's output layer, which maps hidden states to logits; `table` is the token embedding
    table.
    """

    def __call__(self, x_BLD: Array, table: Any) -> Array:
        """Returns float32 logits [B, L, V]; if the vocabulary is split into clusters, returns log-probabilities."""
        ...

    def clusters_and_inputs(self, x_BLD: Array, table: Any) -> tuple[tuple[VocabularyCluster, ...], Array] | None:
        """Returns the vocabulary clusters and the vectors [B, L, E] for their logits; None if one softmax covers all
        words.
        """
        ...


def make_head(config: ModelConfig, rngs: nnx.Rngs) -> OutputHead:
    """Returns the output layer that the config selects."""
    if config.adaptive_cutoffs:
        return AdaptiveHead(config, rngs=rngs)
    return TiedHead(config, rngs=rngs) if config.tied_output else UntiedHead(config, rngs=rngs)


class TiedHead(nnx.Module):
    """An output layer that shares the token embedding table: a dense layer D -> E if D != E, then the transposed
    table.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        width = config.embedding_width
        self.projection = linear(config, config.width, width, rngs) if width != config.width else None
        self.bias = nnx.Param(jnp.zeros(config.vocab_size, jnp.float32)) if config.output_bias else None
        self.scale = config.width**-0.5 if config.output_scale else 1.0

    def __call__(self, x_BLD: Array, table: SingleTokenTable) -> Array:
        """Returns float32 logits [B, L, V] of the next token."""
        x_BLE = x_BLD if self.projection is None else self.projection(x_BLD)
        x_BLE = x_BLE * self.scale if self.scale != 1.0 else x_BLE
        table_VE = table.table_vectors(x_BLE.dtype)
        logits_BLV = shard_activations(table_logits(x_BLE, table_VE), 'BLV')
        return logits_BLV if self.bias is None else logits_BLV + self.bias[...][None, None]

    def clusters_and_inputs(self, x_BLD: Array, table: TokenTable) -> None:  # noqa: ARG002  the adaptive head's signature
        """Returns None instead of vocabulary clusters, because one softmax covers all words."""


class UntiedHead(nnx.Module):
    """An output layer with a separate dense layer D -> V, not shared with the embeddings."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        use_bias, size = config.dense_output_bias, config.vocab_size
        self.dense = linear(config, config.width, size, rngs, axes='DV', use_bias=use_bias, in_float32=True)

    def __call__(self, x_BLD: Array, table: TokenTable) -> Array:  # noqa: ARG002  the tied head's signature
        """Returns float32 logits [B, L, V] of the next token."""
        return shard_activations(self.dense(x_BLD), 'BLV')

    def clusters_and_inputs(self, x_BLD: Array, table: TokenTable) -> None:  # noqa: ARG002  the adaptive head's signature
        """Returns None instead of vocabulary clusters, because one softmax covers all words."""


def check_causal(config: ModelConfig) -> None:
    """Raises InputError if a layer of the config is bidirectional or its attention can read later positions."""
    require(not config.bidirectional, 'model.bidirectional', True, 'False in a decoder, which reads no later token')
    for text, mechanism in zip(config.attention.split(';'), config.mechanisms, strict=True):
        if not mechanism.is_causal:
            advice = mechanism.causal_alternative_text(text.strip())
            raise InputError(f'model.attention {text.strip()!r} is not causal, as a decoder needs it; write {advice}')


def check_layer_activations(decoder: Decoder) -> None:
    """Raises InputError if a decoder attends to the source outside its layers, because layer activations would lack
    this attention.
    """
    if decoder.source is not None:
        reading = decoder.config.source_reading
        raise InputError(
            f"model.source_reading is {reading!r}; layer activations are available only for 'layers' and 'state'"
        )
