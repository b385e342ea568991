"""N layers under one scan, separate or shared, with a choice of what the backward pass recomputes.

The scan makes the program, and so the compile time, independent of N. Separate layers keep their parameters stacked
along a leading axis of size N.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.models.config import ModelConfig
from efficient_attention.modules.layer import Layer, fold


class Stack(nnx.Module):
    """The layers of an encoder, [B, L, D] -> [B, L, D]."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.layers = Layer(config, rngs=rngs) if config.sharing == 'all' else stacked_layers(config, rngs)

    def __call__(self, x_BLD: Array, segments_BL: Array, positions_BL: Array, *, rng: Array | None = None) -> Array:
        """The last layer's output; layer i draws its dropout from `rng` (a key, or one a row) and i."""
        graph, parameters = nnx.split(self.layers)
        is_shared = self.config.sharing == 'all'

        def apply(x_BLD: Array, layer_and_index: tuple[nnx.State | None, Array]) -> tuple[Array, None]:
            own, index = layer_and_index
            layer = nnx.merge(graph, parameters if own is None else own)
            return layer(x_BLD, segments_BL, positions_BL, rng=fold(rng, index)), None

        indices_N = jnp.arange(self.config.layers)
        inputs = (None if is_shared else parameters, indices_N)
        out_BLD, _ = jax.lax.scan(
            rematerialised(apply, self.config.remat),
            x_BLD,
            inputs,
            unroll=min(self.config.scan_unroll, self.config.layers),
        )
        return out_BLD


def stacked_layers(config: ModelConfig, rngs: nnx.Rngs) -> Layer:
    """N layers with independent initial parameters, each array stacked along a leading axis of size N."""

    @nnx.split_rngs(splits=config.layers)
    @nnx.vmap(in_axes=0, out_axes=0)
    def create(rngs: nnx.Rngs) -> Layer:
        return Layer(config, rngs=rngs)

    return create(rngs)


def rematerialised(apply: Callable, remat: str) -> Callable:
    """`apply` with its intermediate values kept ('none'), recomputed ('full'), or all but products ('dots')."""
    if remat == 'none':
        return apply
    policies = {
        'full': jax.checkpoint_policies.nothing_saveable,
        'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    }
    return jax.checkpoint(apply, policy=policies[remat], prevent_cse=False)
