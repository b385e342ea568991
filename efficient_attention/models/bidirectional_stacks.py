"""Two independent stacks, one per reading direction, for a bidirectional language model (ELMo).

Peters et al. 2018, arXiv 1802.05365, section 3.1. A vector [D] is the concatenation of both directions' halves.
"""

import dataclasses

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.layer_activations import LayerActivations
from efficient_attention.models.layer_stack import Stack
from efficient_attention.modules.layer_constructors import make_norm
from efficient_attention.modules.layer_context import Context, fold_into_key


def direction_config(config: ModelConfig) -> ModelConfig:
    """Returns the model config of one reading direction: half the width, and not bidirectional."""
    width = config.width // 2
    return dataclasses.replace(
        config,
        width=width,
        embedding_width=width if config.embedding_width == config.width else config.embedding_width,
        feed_forward_width=config.feed_forward_width // 2,
        heads=1,
        head_width=0,
        bidirectional=False,
        directions_apart=False,
    )


class DirectionStacks(nnx.Module):
    """Two layer stacks, one per reading direction, [B, L, D] -> [B, L, D]; each stack processes one half of every
    vector.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.ahead = Stack(direction_config(config), causal=True, rngs=rngs)
        self.back = Stack(direction_config(config), causal=True, rngs=rngs)

    def __call__(self, x_BLD: Array, context: Context) -> Array:
        """Returns the outputs of both directions' stacks, concatenated [B, L, D].

        The arguments are the same as for `Stack`.
        """
        ahead_BLE, back_BLE, turned = split_directions(x_BLD, context)
        ahead_BLE = self.ahead(ahead_BLE, context._replace(rng=fold_into_key(context.rng, 0)))
        back_BLE = self.back(back_BLE, turned._replace(rng=fold_into_key(context.rng, 1)))
        return jnp.concatenate([ahead_BLE, back_BLE[:, ::-1]], axis=-1)

    def with_layer_activations(self, x_BLD: Array, context: Context) -> tuple[Array, LayerActivations]:
        """Returns the outputs of both directions' stacks and of all their layers; the halves of both directions are
        concatenated.
        """
        ahead_BLE, back_BLE, turned = split_directions(x_BLD, context)
        ahead_BLE, ahead = self.ahead.with_layer_activations(
            ahead_BLE, context._replace(rng=fold_into_key(context.rng, 0))
        )
        back_BLE, back = self.back.with_layer_activations(back_BLE, turned._replace(rng=fold_into_key(context.rng, 1)))
        outputs_NBLD = jnp.concatenate([ahead.outputs_NBLD, back.outputs_NBLD[:, :, ::-1]], axis=-1)
        return jnp.concatenate([ahead_BLE, back_BLE[:, ::-1]], axis=-1), LayerActivations(outputs_NBLD, {})


def split_directions(x_BLD: Array, context: Context) -> tuple[Array, Array, Context]:
    """Returns the two halves of each vector, one per reading direction, and the context for the second direction.

    The second direction's vectors and context have their rows reversed.
    """
    ahead_BLE, back_BLE = jnp.split(x_BLD, 2, axis=-1)
    back_BLE, segments_BL, positions_BL = back_BLE[:, ::-1], context.segments_BL[:, ::-1], context.positions_BL[:, ::-1]
    return ahead_BLE, back_BLE, context._replace(segments_BL=segments_BL, positions_BL=positions_BL, lengths_B=None)


class DirectionNorms(nnx.Module):
    """Two norms, one for each reading direction's half of a vector."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.ahead, self.back = (make_norm(config, config.width // 2, rngs) for _ in range(2))

    def __call__(self, x: Float[Array, '... D']) -> Float[Array, '... D']:
        """Returns the vectors with each direction's half normalised separately."""
        ahead, back = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([self.ahead(ahead), self.back(back)], axis=-1)
