"""The encoder: embeddings and a stack of layers."""

from typing import TypedDict, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Int

from efficient_attention.attention.dropout import dropout
from efficient_attention.config.model import ModelConfig
from efficient_attention.models.directions import DirectionNorms, DirectionStacks, direction_config
from efficient_attention.models.embeddings import Embeddings
from efficient_attention.models.memory import StateMemory
from efficient_attention.models.quantized import set_quantization
from efficient_attention.models.stack import Stack
from efficient_attention.models.taps import Inside, Taps
from efficient_attention.models.uneven import UnevenStack
from efficient_attention.modules.context import Context, fold
from efficient_attention.modules.parameters import make_norm


class EncoderOptions(TypedDict, total=False):
    """The keyword arguments of `Encoder.embedded`, which explains them."""

    token_types_BL: Array | None
    positions_BL: Array | None
    rng: Array | None
    step: Array | int
    is_global_BL: Array | None


class Encoder(nnx.Module):
    """Token ids to contextual vectors, [B, L] -> [B, L, D]: BERT or ALBERT by its config's sizes and choices."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embeddings = Embeddings(direction_config(config) if config.directions_apart else config, rngs=rngs)
        self.stack = make_stack(config, rngs=rngs)
        # A stack of pre-norm layers leaves its sum unnormalised.
        make = DirectionNorms if config.directions_apart else row_norm
        self.norm = make(config, rngs=rngs) if config.norm == 'pre' else None
        set_quantization(self, config, 'encoder')

    def __call__(self, tokens_BL: Array, segments_BL: Array, **options: Unpack[EncoderOptions]) -> Array:
        """The vectors of the last layer; arguments as of `embedded`."""
        x_BLD, context = self.embedded(tokens_BL, segments_BL, **options)
        return self.normed(self.stack(x_BLD, context), options.get('rng'))

    def embedded(
        self,
        tokens_BL: Array,
        segments_BL: Array,
        *,
        token_types_BL: Array | None = None,
        positions_BL: Array | None = None,
        rng: Array | None = None,
        step: Array | int = 0,
        is_global_BL: Array | None = None,
    ) -> tuple[Array, Context]:
        """The vectors of the embeddings, and what the stack reads beside them.

        Args:
            tokens_BL: ids below V.
            segments_BL: 0 = padding, 1, 2, ... = packed examples, which never read one another.
            token_types_BL: 0 for sentence A, 1 for B; 0 by default.
            positions_BL: 0, 1, ... by default; below `max_length` where the table is learned.
            rng: a key, or one for each row; turns dropout on.
            step: training step, which decides what random mechanisms draw; 0 outside training.
            is_global_BL: tokens with global attention, for a config with `global_tokens`.
        """
        token_types_BL = jnp.zeros_like(tokens_BL) if token_types_BL is None else token_types_BL
        if positions_BL is None:
            positions_BL = jnp.broadcast_to(jnp.arange(tokens_BL.shape[1]), tokens_BL.shape)
        x_BLD = self.embeddings(tokens_BL, token_types_BL, positions_BL, rng=fold(rng, 0))
        if self.config.directions_apart:  # both begin with the same vectors
            x_BLD = jnp.concatenate([x_BLD, x_BLD], axis=-1)
        draws = fold(rng, 1), mechanism_rng(self.config, step)
        return x_BLD, Context(segments_BL, positions_BL, *draws, is_global_BL)

    def normed(self, x_BLD: Array, rng: Array | None = None) -> Array:
        """The last layer's output as it is handed on; `rng` (a key, or one a row) turns dropout on."""
        return last_norm(self.config, self.norm, x_BLD, rng)

    def with_states(
        self, tokens_BL: Array, segments_BL: Array, **options: Unpack[EncoderOptions]
    ) -> tuple[Array, StateMemory]:
        """Like `__call__`, and also the recurrent states after the last token (backward layers: after the first)."""
        x_BLD, context = self.embedded(tokens_BL, segments_BL, **options)
        assert isinstance(self.stack, Stack)  # an encoder-decoder's has no directions apart
        x_BLD, states = self.stack.with_states(x_BLD, context)
        return self.normed(x_BLD, options.get('rng')), states

    token_outputs = frozenset({'vectors'})  # the outputs with an axis of tokens

    def outputs(self, batch: dict[str, Array]) -> dict[str, Array]:
        """'vectors' [B, L, D] of a batch; token types are left out where the model has none."""
        types_BL = batch['token_types'] if self.config.token_types > 1 else None
        return {'vectors': self(batch['tokens'], batch['segments'], token_types_BL=types_BL)}

    def tapped(self, tokens_BL: Array, segments_BL: Array, **options: Unpack[EncoderOptions]) -> tuple[Array, Taps]:
        """Like `__call__`, and also what all layers computed on the way."""
        x_BLD, context = self.embedded(tokens_BL, segments_BL, **options)
        x_BLD, taps = self.stack.tapped(x_BLD, context)
        return self.normed(x_BLD, options.get('rng')), taps

    def with_inside(
        self, tokens_BL: Array, segments_BL: Array, **options: Unpack[EncoderOptions]
    ) -> tuple[Array, Inside]:
        """Like `__call__`, and also what a student and its teacher are compared by.

        Its states are the vectors of the embeddings and of each of the N layers, [N + 1, B, L, D], normed as the last
        one's are. A reversible stack keeps what it would otherwise recover.
        """
        x_BLD, context = self.embedded(tokens_BL, segments_BL, **options)
        last_BLD, taps = self.stack.tapped(x_BLD, context)
        states_NBLD = jnp.concatenate([x_BLD[None], taps.outputs_NBLD.astype(x_BLD.dtype)])
        states_NBLD = jax.vmap(lambda x_BLD: self.normed(x_BLD, options.get('rng')))(states_NBLD)
        return self.normed(last_BLD, options.get('rng')), Inside(states_NBLD, taps.attention.get('attention'))


def make_stack(config: ModelConfig, *, rngs: nnx.Rngs) -> Stack | DirectionStacks | UnevenStack:
    """The stack of an encoder's layers."""
    if config.directions_apart:
        return DirectionStacks(config, rngs=rngs)
    return UnevenStack(config, rngs=rngs) if config.is_uneven else Stack(config, rngs=rngs)


def row_norm(config: ModelConfig, *, rngs: nnx.Rngs) -> nnx.Module:
    """The norm of vectors as wide as the model."""
    return make_norm(config, config.width, rngs)


def last_norm(config: ModelConfig, norm: nnx.Module | None, x_BLD: Array, rng: Array | None) -> Array:
    """What a stack gives after its norm, if it has one, and dropout where `final_dropout` asks for it."""
    x_BLD = x_BLD if norm is None else norm(x_BLD)
    return dropout(x_BLD, config.dropout_rate, fold(rng, 2)) if config.final_dropout else x_BLD


def mechanism_rng(config: ModelConfig, step: Array | int) -> Array | None:
    """The PRNG key of random mechanisms in a training step, from (seed, step) only; None where none draws."""
    if not any(mechanism.draws.always for mechanism in (*config.mechanisms, config.cross_mechanism)):
        return None
    return redraw_key(jax.random.key(config.attention_seed), step, config.attention_redraw_steps)


def redraw_key(rng: Array, step: int | Int[Array, ''], every: int) -> Array:
    """The key of what is drawn at a training step: a new one each `every` steps, always the first where it is 0."""
    return jax.random.fold_in(rng, step // every if every else 0)
