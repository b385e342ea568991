"""Two stacks that never read one another, one of which reads rows from their end, and a language model of both.

Peters et al. 2018 (ELMo), arXiv 1802.05365, section 3.1. A vector [D] is that of both directions, half of it each.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from efficient_attention.config.model import ModelConfig
from efficient_attention.models.stack import Stack
from efficient_attention.models.taps import Taps
from efficient_attention.modules.context import fold
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

    def __call__(self, x_BLD: Array, segments_BL: Array, positions_BL: Array, **options: Any) -> Array:
        """The last layers' outputs; arguments as of `Stack`."""
        ahead, back = self.read(self.ahead, self.back, (x_BLD, segments_BL, positions_BL), options)
        return jnp.concatenate([ahead, back[:, ::-1]], axis=-1)

    def tapped(self, x_BLD: Array, segments_BL: Array, positions_BL: Array, **options: Any) -> tuple[Array, Taps]:
        """The last layers' outputs, and those of all layers; both directions' halves joined."""
        inputs = x_BLD, segments_BL, positions_BL
        (ahead_BLE, ahead), (back_BLE, back) = self.read(self.ahead.tapped, self.back.tapped, inputs, options)
        outputs_NBLD = jnp.concatenate([ahead.outputs_NBLD, back.outputs_NBLD[:, :, ::-1]], axis=-1)
        return jnp.concatenate([ahead_BLE, back_BLE[:, ::-1]], axis=-1), Taps(outputs_NBLD, {})

    def read(
        self,
        ahead: Callable[..., Any],
        back: Callable[..., Any],
        inputs: tuple[Array, Array, Array],
        options: dict[str, Any],
    ) -> tuple[Any, Any]:
        """What each direction's stack gives of its half of the vectors; the second reads rows from their end."""
        (x_BLD, segments_BL, positions_BL), rng = inputs, options.pop('rng', None)
        ahead_BLE, back_BLE = jnp.split(x_BLD, 2, axis=-1)
        turned = back_BLE[:, ::-1], segments_BL[:, ::-1], positions_BL[:, ::-1]
        given = ahead(ahead_BLE, segments_BL, positions_BL, rng=fold(rng, 0), **options)
        return given, back(*turned, rng=fold(rng, 1), **options)


class DirectionNorms(nnx.Module):
    """A norm for each direction's half of a vector."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.ahead, self.back = (make_norm(config, config.width // 2, rngs) for _ in range(2))

    def __call__(self, x: Float[Array, '... D']) -> Float[Array, '... D']:
        """The vectors, each half normed by itself."""
        ahead, back = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([self.ahead(ahead), self.back(back)], axis=-1)
