"""The encoder: embeddings and a stack of layers, from token ids to hidden states."""

from typing import TypedDict, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Int

from efficient_attention.attention.dropout import dropout
from efficient_attention.attention.foreign_keywords import refuse_foreign_keywords
from efficient_attention.attention.request import AnySegments, segments_of_batch
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.bidirectional_stacks import DirectionNorms, DirectionStacks, direction_config
from efficient_attention.models.embeddings import Embeddings, default_positions
from efficient_attention.models.layer_activations import DistillationActivations, LayerActivations
from efficient_attention.models.layer_stack import Stack
from efficient_attention.models.quantized import set_quantization
from efficient_attention.models.segment_memory import StateMemory
from efficient_attention.models.uneven_stack import UnevenStack
from efficient_attention.modules.layer_constructors import make_norm
from efficient_attention.modules.layer_context import Context, fold_into_key, make_context


class EncoderOptions(TypedDict, total=False):
    """The types of the keyword arguments of `Encoder.embedded`, which documents them."""

    token_types_BL: Array | None
    positions_BL: Array | None
    rng: Array | None
    step: Array | int
    is_global_BL: Array | None


class Encoder(nnx.Module):
    """An encoder such as BERT or ALBERT, which maps token ids to hidden states, [B, L] -> [B, L, D]."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embeddings = Embeddings(direction_config(config) if config.directions_apart else config, rngs=rngs)
        self.stack = make_stack(config, rngs=rngs)
        # A pre-norm stack needs a final norm, because its output is an unnormalised residual sum.
        make = DirectionNorms if config.directions_apart else make_model_width_norm
        self.norm = make(config, rngs=rngs) if config.norm == 'pre' else None
        set_quantization(self, config, 'encoder')

    @refuse_foreign_keywords
    def __call__(self, tokens_BL: Array, segments_BL: AnySegments, **options: Unpack[EncoderOptions]) -> Array:
        """Returns the final hidden states [B, L, D].

        The arguments are the same as for `embedded`.
        """
        x_BLD, context = self.embedded(tokens_BL, segments_BL, **options)
        return self.normed(self.stack(x_BLD, context), options.get('rng'))

    def embedded(
        self,
        tokens_BL: Array,
        segments_BL: AnySegments,
        *,
        token_types_BL: Array | None = None,
        positions_BL: Array | None = None,
        rng: Array | None = None,
        step: Array | int = 0,
        is_global_BL: Array | None = None,
    ) -> tuple[Array, Context]:
        """Returns the token embeddings, and the context with the stack's other inputs, such as segments and PRNG keys.

        Args:
            tokens_BL: ids below V.
            segments_BL: 0 = padding; 1, 2, ... = packed examples, which do not attend to each other; an array [B, L] or
                `Lengths`.
            token_types_BL: 0 for sentence A, 1 for B; 0 by default.
            positions_BL: 0, 1, ... by default; below `max_length` if positions are a learned table.
            rng: PRNG key, or one per row; enables dropout.
            step: training step, which determines the samples of random mechanisms; 0 outside training.
            is_global_BL: tokens with global attention, for a config with `global_tokens`.
        """
        token_types_BL = jnp.zeros_like(tokens_BL) if token_types_BL is None else token_types_BL
        if positions_BL is None:
            positions_BL = default_positions(self.config, tokens_BL)
        x_BLD = self.embeddings(tokens_BL, token_types_BL, positions_BL, rng=fold_into_key(rng, 0))
        if self.config.directions_apart:  # both reading directions start from the same embeddings
            x_BLD = jnp.concatenate([x_BLD, x_BLD], axis=-1)
        draws = fold_into_key(rng, 1), mechanism_rng(self.config, step)
        context = make_context(segments_BL, positions_BL, is_global_BL=is_global_BL)
        return x_BLD, context._replace(rng=draws[0], mechanism_rng=draws[1])

    def normed(self, x_BLD: Array, rng: Array | None = None) -> Array:
        """Returns the final hidden states: the last layer's output after the final norm and dropout.

        `rng` (a PRNG key, or one per row) enables dropout.
        """
        return apply_final_norm(self.config, self.norm, x_BLD, rng)

    def with_recurrent_states(
        self, tokens_BL: Array, segments_BL: AnySegments, **options: Unpack[EncoderOptions]
    ) -> tuple[Array, StateMemory]:
        """Returns the final hidden states of all positions, and the final states of the recurrent layers.

        The final state of a forward cell is its state after the last token, of a backward cell after the first token.
        """
        x_BLD, context = self.embedded(tokens_BL, segments_BL, **options)
        # Only encoder-decoders need final states, and an encoder-decoder cannot have `directions_apart`.
        assert isinstance(self.stack, Stack)
        x_BLD, states = self.stack.with_recurrent_states(x_BLD, context)
        return self.normed(x_BLD, options.get('rng')), states

    token_outputs = frozenset({'vectors'})  # names of the outputs that have a token axis

    def outputs(self, batch: dict[str, Array]) -> dict[str, Array]:
        """Returns a dict with the key 'vectors': the final hidden states of a batch, [B, L, D].

        Token types are ignored if the model has none.
        """
        types_BL = batch['token_types'] if self.config.token_types > 1 else None
        return {'vectors': self(batch['tokens'], segments_of_batch(batch), token_types_BL=types_BL)}

    def with_layer_activations(
        self, tokens_BL: Array, segments_BL: AnySegments, **options: Unpack[EncoderOptions]
    ) -> tuple[Array, LayerActivations]:
        """Returns the final hidden states and the layer activations: the outputs, queries and keys of all layers."""
        x_BLD, context = self.embedded(tokens_BL, segments_BL, **options)
        x_BLD, activations = self.stack.with_layer_activations(x_BLD, context)
        return self.normed(x_BLD, options.get('rng')), activations

    def with_hidden_states(
        self, tokens_BL: Array, segments_BL: AnySegments, **options: Unpack[EncoderOptions]
    ) -> tuple[Array, DistillationActivations]:
        """Returns the final hidden states, and the activations by which distillation compares student and teacher.

        The activations include the embeddings and the outputs of the N layers, [N + 1, B, L, D], after the final norm.
        A reversible stack stores them for the backward pass, although it normally recomputes them.
        """
        x_BLD, context = self.embedded(tokens_BL, segments_BL, **options)
        last_BLD, activations = self.stack.with_layer_activations(x_BLD, context)
        states_NBLD = jnp.concatenate([x_BLD[None], activations.outputs_NBLD.astype(x_BLD.dtype)])
        states_NBLD = jax.vmap(lambda x_BLD: self.normed(x_BLD, options.get('rng')))(states_NBLD)
        return self.normed(last_BLD, options.get('rng')), DistillationActivations(
            states_NBLD, activations.attention.get('attention')
        )


def make_stack(config: ModelConfig, *, rngs: nnx.Rngs) -> Stack | DirectionStacks | UnevenStack:
    """Returns the layer stack that an encoder's config describes.

    `DirectionStacks` has separate layers for each reading direction (ELMo). In an `UnevenStack`, layers differ in their
    numbers of heads or feed-forward units. All other encoders have a `Stack`.
    """
    if config.directions_apart:
        return DirectionStacks(config, rngs=rngs)
    return UnevenStack(config, rngs=rngs) if config.has_layer_specific_sizes else Stack(config, rngs=rngs)


def make_model_width_norm(config: ModelConfig, *, rngs: nnx.Rngs) -> nnx.Module:
    """Returns a norm layer for vectors of the model's width."""
    return make_norm(config, config.width, rngs)


def apply_final_norm(config: ModelConfig, norm: nnx.Module | None, x_BLD: Array, rng: Array | None) -> Array:
    """Returns a stack's output after the final norm, if the stack has one, and after dropout if `final_dropout` is
    set.
    """
    x_BLD = x_BLD if norm is None else norm(x_BLD)
    return dropout(x_BLD, config.dropout_rate, fold_into_key(rng, 2)) if config.final_dropout else x_BLD


def mechanism_rng(config: ModelConfig, step: Array | int) -> Array | None:
    """Returns the PRNG key from which attention mechanisms sample in a training step; None if no mechanism is random.

    The key depends only on `attention_seed` and the step.
    """
    if not any(mechanism.randomness.always for mechanism in (*config.mechanisms, config.cross_mechanism)):
        return None
    return redraw_key(jax.random.key(config.attention_seed), step, config.attention_redraw_steps)


def redraw_key(rng: Array, step: int | Int[Array, ''], every: int) -> Array:
    """Returns the PRNG key for a training step. The key changes after every `every` steps; if `every` is 0, it never
    changes.
    """
    return jax.random.fold_in(rng, step // every if every else 0)
