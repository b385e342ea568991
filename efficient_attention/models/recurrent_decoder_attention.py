"""Computes a recurrent decoder's attention to the source outside its layers, and the vectors that its output layer
reads.

'before' (Bahdanau et al. 2014, arXiv 1409.0473, A.1.2): c_t = attention(s_{t-1}), and s_t = cell(s_{t-1}, [y, c_t]).

'after' (Luong et al. 2015, arXiv 1508.04025, 3.1): c_t = attention(s_t), and the output layer reads h~_t = tanh(W [c_t;
s_t]). With input feeding (3.3), s_{t+1} = cell(s_t, [y, h~_t]).

A matrix applied to [y, c_t] or [y, h~_t] is stored here as two matrices, whose products are added.

If a position depends on the result of the position before it, one function computes a single position. Training scans
this function over the target; decoding calls it per new token.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Int

from efficient_attention.attention.cross_attention_cache import CrossAttentionKeys
from efficient_attention.attention.dropout import dropout
from efficient_attention.attention.features.cross_attention_sums import CrossAttentionSums
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.layer_stack import Stack, with_rematerialisation
from efficient_attention.models.segment_memory import empty_states, first_memory
from efficient_attention.modules.attention import AttentionOperands
from efficient_attention.modules.cross_attention import CrossAttention
from efficient_attention.modules.layer import RECURRENT, Streams
from efficient_attention.modules.layer_constructors import linear
from efficient_attention.modules.layer_context import Context, EncodedSource, fold_into_key
from efficient_attention.recurrence.cells import find_cell
from efficient_attention.recurrence.run_cell import RecurrentState

Norm = Callable[[Array, Array | None], Array]  # (stack output, PRNG key) -> final hidden states
JOINED, READ_OUT, WEIGHTS = 0x6A, 0x72, 0x77  # constants that make independent dropout keys


class RecurrentDecoderCache(NamedTuple):
    """What a recurrent decoder passes from one position to the next: the state of each layer, and the vector for input
    feeding.
    """

    states: tuple[RecurrentState, ...]
    fed_BD: Array


class DecodingStepInputs(NamedTuple):
    """The inputs of a recurrent decoder at one position; for a scan, each array has a leading axis of positions."""

    x_B1D: Array
    product_B1X: Array
    segments_B1: Array
    positions_B1: Array
    number: Int[Array, '']


class DecodingStepOutputs(NamedTuple):
    """The results of a recurrent decoder at one position: vectors for the output layer, and inputs and outputs of the
    attention.

    Args:
        hidden_B1D: the last layer's vector, or its combination h~ with the attention output.
        context_B1D: the attention output, if the readout needs it separately.
        asked_B1D: the vector that the attention query is computed from.
        drawn_BH1: the log-probability of the sampled keys, if the attention samples keys.
    """

    hidden_B1D: Array
    context_B1D: Array | None = None
    asked_B1D: Array | None = None
    drawn_BH1: Array | None = None


def has_recurrent_decoder_attention(config: ModelConfig) -> bool:
    """Returns whether a decoder has attention to the source outside its layers, or a readout."""
    return config.source_reading in ('before', 'after') or config.readout != 'none'


class RecurrentDecoderAttention(nnx.Module):
    """The parts of a recurrent decoder outside its layers: an attention to the source that all layers share, the
    matrices that combine its output with hidden states, and the readout.

    Args:
        config: the decoder's config.
        rngs: generators of the initial values.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.config, width, reading = config, config.width, config.source_reading
        gates = find_cell(config.cell, width, config.recurrent_state_width).gate_count * config.recurrent_state_width
        self.attention = CrossAttention(config, rngs=rngs) if reading != 'state' else None
        self.joined = linear(config, 2 * width, width, rngs, use_bias=False) if reading == 'after' else None
        self.fed = linear(config, width, gates, rngs, use_bias=False) if config.has_sequential_decoder else None
        read = width * (2 + (reading == 'before'))
        self.readout = linear(config, read, 2 * width, rngs) if config.readout == 'maxout' else None

    def __call__(
        self, stack: Stack, norm: Norm, x_BLD: Array, context: Context
    ) -> tuple[Array, AttentionOperands | None]:
        """Returns the output layer's input at all positions, and the queries and keys of the attention to the source.

        Args:
            stack: the decoder's stack.
            norm: final norm and dropout of the stack's output.
            x_BLD: the embedded tokens.
            context: inputs of the stack, with the source as `other`.
        """
        if not self.config.has_sequential_decoder:
            hidden_BLD = norm(stack(x_BLD, context), context.rng)
            given, operands = self.read_all_positions(hidden_BLD, context)
            return self.read_out(given, x_BLD, context.rng), operands
        context, other = context.with_shared_terms(stack.shared_terms(context.positions_BL)), context.other
        assert other is not None
        fixed = self.source_keys_for_decoding(other, context.mechanism_rng)
        kept = self.initial_reader_state(len(x_BLD), x_BLD.dtype, other)
        given, _ = self.run_with_cache(stack, norm, x_BLD, context, kept, fixed)
        assert self.attention is not None and given.asked_B1D is not None
        query, keys = self.attention.scaled_query(given.asked_B1D), self.attention.project_source(other).key
        operands = self.attention.attention_operands(given.asked_B1D, query, keys)._replace(drawn_BHL=given.drawn_BH1)
        return self.read_out(given, x_BLD, context.rng), operands

    def read_all_positions(
        self, hidden_BLD: Array, context: Context
    ) -> tuple[DecodingStepOutputs, AttentionOperands | None]:
        """Returns the recurrent decoder's results at all positions, computed in parallel from the last layer's hidden
        states.

        This is possible only if no recurrent state depends on an attention output.
        """
        if self.attention is None:
            return DecodingStepOutputs(hidden_BLD), None
        drawn_from = self.attention_draw_key(context.mechanism_rng)
        asked = context._replace(rng=fold_into_key(context.rng, WEIGHTS), mechanism_rng=drawn_from)
        read_BLD, operands = self.attention.run(hidden_BLD, asked)
        return DecodingStepOutputs(self.attentional_hidden_state(read_BLD, hidden_BLD, context.rng)), operands

    # ---- sequential decoding, one position after another ----

    def initial_reader_state(self, rows: int, dtype: jnp.dtype, other: EncodedSource | None) -> RecurrentDecoderCache:
        """Returns the cache of the recurrent decoder before the first token: the initial states and a zero vector for
        input feeding.
        """
        memory = None if other is None else first_memory(other)
        memory = empty_states(self.config, rows) if memory is None else memory
        of_layers = memory.per_layer_arrays()
        states = [
            memory.layer_memory(jax.tree.map(lambda x, number=number: x[number], of_layers))[0]
            for number in range(self.config.layers)
        ]
        return RecurrentDecoderCache(tuple(states), jnp.zeros((rows, self.config.width), dtype))

    def source_keys_for_decoding(
        self, other: EncodedSource, mechanism_rng: Array | None
    ) -> CrossAttentionKeys | CrossAttentionSums | None:
        """Returns the cross-attention keys of the source, which are computed once per text; None if the decoder does
        not attend to the source.
        """
        if self.attention is None:
            return None
        return self.attention.source_keys_for_decoding(other, self.attention_draw_key(mechanism_rng))

    def attention_draw_key(self, mechanism_rng: Array | None) -> Array | None:
        """Returns the PRNG key with which the attention to the source samples; it differs from the keys of all
        layers.
        """
        return fold_into_key(mechanism_rng, self.config.layers)

    def run_with_cache(
        self,
        stack: Stack,
        norm: Norm,
        x_BnD: Array,
        context: Context,
        kept: RecurrentDecoderCache,
        fixed: CrossAttentionKeys | CrossAttentionSums | None,
    ) -> tuple[DecodingStepOutputs, RecurrentDecoderCache]:
        """Returns the recurrent decoder's results [B, n, D] for n new tokens, and its cache after them.

        The first layer's product with its inputs depends on no state, so it is computed for all tokens at once.
        """
        layers = stack.parameter_layers()
        layers = tuple(layers[number] for number in self.config.layer_to_param_index)

        def step(
            kept: RecurrentDecoderCache, at: DecodingStepInputs
        ) -> tuple[RecurrentDecoderCache, DecodingStepOutputs]:
            rng = fold_into_key(context.rng, at.number)
            here = context._replace(rng=rng, segments_BL=at.segments_B1, positions_BL=at.positions_B1, lengths_B=None)
            here = here._replace(state_rng=context.rng)
            before = self.previous_output(kept, at)
            product_B1X, given = at.product_B1X, DecodingStepOutputs(at.x_B1D)
            if self.config.source_reading == 'before':
                read_B1D, drawn_BH1 = self.attend_to_source(before, here, fixed)
                given = DecodingStepOutputs(at.x_B1D, read_B1D, before, drawn_BH1)
            if self.fed is not None:
                read_B1D = before if given.context_B1D is None else given.context_B1D
                product_B1X = product_B1X + self.fed(read_B1D)
            streams: Streams = (at.x_B1D,)
            states: list[RecurrentState] = []
            for number, layer in enumerate(layers):
                of_layer = here.layer_context(number, (kept.states[number],))
                of_layer = of_layer._replace(product_BLX=product_B1X) if number == 0 else of_layer
                streams, handed_out = layer.run(streams, of_layer)
                states.append(handed_out[RECURRENT.name][0])
            given = self.position_outputs(norm(streams[0], rng), given, here, fixed)
            is_padding_B1 = at.segments_B1 == 0
            fed_BD = jnp.where(is_padding_B1, kept.fed_BD, given.hidden_B1D[:, 0])
            return RecurrentDecoderCache(tuple(states), fed_BD), given

        numbers_n = jnp.arange(x_BnD.shape[1])
        each = DecodingStepInputs(
            x_BnD, layers[0].input_product(x_BnD), context.segments_BL, context.positions_BL, numbers_n
        )
        if x_BnD.shape[1] == 1:
            kept, given = step(kept, each._replace(number=numbers_n[0]))
            return given, kept
        each = jax.tree.map(lambda x: x if x.ndim == 1 else jnp.expand_dims(x.swapaxes(0, 1), 2), each)
        step = with_rematerialisation(step, self.config.remat)
        kept, given = jax.lax.scan(step, kept, each)
        drawn_BHn = None if given.drawn_BH1 is None else jnp.moveaxis(given.drawn_BH1[..., 0], 0, -1)
        given = jax.tree.map(lambda x_nB1D: x_nB1D[:, :, 0].swapaxes(0, 1), given._replace(drawn_BH1=None))
        return given._replace(drawn_BH1=drawn_BHn), kept

    def previous_output(self, kept: RecurrentDecoderCache, at: DecodingStepInputs) -> Array:
        """Returns the vector that the previous position passes to this position, [B, 1, D]; zeros where a text begins.

        The vector is the newest state ('before') or the vector for input feeding ('after').
        """
        newest, segments_B = kept.states[-1], at.segments_B1[:, 0]
        vector_BD = newest.vectors[0] if self.config.source_reading == 'before' else kept.fed_BD
        begins_B1 = ((segments_B != newest.segments_B) & (segments_B != 0))[:, None]
        return jnp.where(begins_B1, 0.0, vector_BD).astype(at.x_B1D.dtype)[:, None]

    def attend_to_source(
        self, asked_BnD: Array, context: Context, fixed: CrossAttentionKeys | CrossAttentionSums | None
    ) -> tuple[Array, Array | None]:
        """Returns the output of the attention to the source, and the log-probability of the sampled keys."""
        assert self.attention is not None and fixed is not None
        context = context._replace(rng=fold_into_key(context.rng, WEIGHTS))
        out, operands = self.attention.run_with_cache(asked_BnD, context, fixed)
        return out, None if operands is None else operands.drawn_BHL

    def position_outputs(
        self,
        hidden_BnD: Array,
        given: DecodingStepOutputs,
        context: Context,
        fixed: CrossAttentionKeys | CrossAttentionSums | None,
    ) -> DecodingStepOutputs:
        """Returns the decoder's results, computed from the last layer's hidden states.

        With `source_reading` 'after', this method first attends to the source.
        """
        if self.joined is None:
            return given._replace(hidden_B1D=hidden_BnD)
        read_BnD, drawn_BHn = self.attend_to_source(hidden_BnD, context, fixed)
        return DecodingStepOutputs(
            self.attentional_hidden_state(read_BnD, hidden_BnD, context.rng), None, hidden_BnD, drawn_BHn
        )

    # ---- the vectors that the output layer reads ----

    def attentional_hidden_state(self, read_BLD: Array, hidden_BLD: Array, rng: Array | None) -> Array:
        """Returns Luong's attentional hidden state h~ = tanh(W [c; s]), from the attention output c and the last
        layer's output s.
        """
        assert self.joined is not None
        joined_BLD = jnp.tanh(self.joined(jnp.concatenate([read_BLD, hidden_BLD], axis=-1)))
        return dropout(joined_BLD, self.config.dropout_rate, fold_into_key(rng, JOINED))

    def read_out(self, given: DecodingStepOutputs, x_BLD: Array, rng: Array | None) -> Array:
        """Returns the vectors that the output layer reads, at all positions: the hidden states, or their maxout
        readout.
        """
        if self.readout is None:
            return given.hidden_B1D
        read = [given.hidden_B1D, x_BLD, *([] if given.context_B1D is None else [given.context_B1D])]
        pairs_BLD2 = self.readout(jnp.concatenate(read, axis=-1)).reshape(*x_BLD.shape, 2)
        return dropout(pairs_BLD2.max(axis=-1), self.config.dropout_rate, fold_into_key(rng, READ_OUT))
