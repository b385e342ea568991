"""Two stacks that never read one another, one of which reads rows from their end, and a language model of both.

Peters et al. 2018 (ELMo), arXiv 1802.05365, section 3.1. A vector [D] is that of both directions, half of it each.
"""

import dataclasses

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.stack import Stack
from efficient_attention.models.taps import Taps
from efficient_attention.modules.context import Context, fold
from efficient_attention.modules.parameters import make_norm


def direction_config(config: ModelConfig) -> ModelConfig:
    """The config of one direction: half as wide, and one direction alone."""
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
    """A stack for each direction, [B, L, D] -> [B, L, D]: each reads and writes its half of a vector."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.ahead = Stack(direction_config(config), causal=True, rngs=rngs)
        self.back = Stack(direction_config(config), causal=True, rngs=rngs)

    def __call__(self, x_BLD: Array, context: Context) -> Array:
        """The last layers' outputs; arguments as of `Stack`."""
        ahead_BLE, back_BLE, turned = halves(x_BLD, context)
        ahead_BLE = self.ahead(ahead_BLE, context._replace(rng=fold(context.rng, 0)))
        back_BLE = self.back(back_BLE, turned._replace(rng=fold(context.rng, 1)))
        return jnp.concatenate([ahead_BLE, back_BLE[:, ::-1]], axis=-1)

    def tapped(self, x_BLD: Array, context: Context) -> tuple[Array, Taps]:
        """The last layers' outputs, and those of all layers; both directions' halves joined."""
        ahead_BLE, back_BLE, turned = halves(x_BLD, context)
        ahead_BLE, ahead = self.ahead.tapped(ahead_BLE, context._replace(rng=fold(context.rng, 0)))
        back_BLE, back = self.back.tapped(back_BLE, turned._replace(rng=fold(context.rng, 1)))
        outputs_NBLD = jnp.concatenate([ahead.outputs_NBLD, back.outputs_NBLD[:, :, ::-1]], axis=-1)
        return jnp.concatenate([ahead_BLE, back_BLE[:, ::-1]], axis=-1), Taps(outputs_NBLD, {})


def halves(x_BLD: Array, context: Context) -> tuple[Array, Array, Context]:
    """Each direction's half of the vectors, the second's rows from their end, and the context of these rows."""
    ahead_BLE, back_BLE = jnp.split(x_BLD, 2, axis=-1)
    back_BLE, segments_BL, positions_BL = back_BLE[:, ::-1], context.segments_BL[:, ::-1], context.positions_BL[:, ::-1]
    return ahead_BLE, back_BLE, context._replace(segments_BL=segments_BL, positions_BL=positions_BL)


class DirectionNorms(nnx.Module):
    """A norm for each direction's half of a vector."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.ahead, self.back = (make_norm(config, config.width // 2, rngs) for _ in range(2))

    def __call__(self, x: Float[Array, '... D']) -> Float[Array, '... D']:
        """The vectors, each half normed by itself."""
        ahead, back = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([self.ahead(ahead), self.back(back)], axis=-1)
