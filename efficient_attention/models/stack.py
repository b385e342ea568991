"""N layers under one scan, separate or shared, with a choice of what the backward pass recomputes.

The scan makes the program, and so the compile time, independent of N. Separate layers keep their parameters stacked
along a leading axis of size N.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.mechanisms import Mechanism
from efficient_attention.models.config import ModelConfig
from efficient_attention.modules.layer import Layer, fold


class Stack(nnx.Module):
    """The layers of an encoder, [B, L, D] -> [B, L, D]."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.layers = Layer(config, rngs=rngs) if config.sharing == 'all' else stacked_layers(config, rngs)

    def __call__(
        self,
        x_BLD: Array,
        segments_BL: Array,
        positions_BL: Array,
        *,
        rng: Array | None = None,
        mechanism_rng: Array | None = None,
        is_global_BL: Array | None = None,
    ) -> Array:
        """The last layer's output; layer i draws from `rng` (a key, or one a row), `mechanism_rng` (a key) and i."""
        graph, parameters = nnx.split(self.layers)
        mechanisms = layer_mechanisms(self.config)
        turns = period(mechanisms)

        def apply_turn(mechanism: Mechanism, x_BLD: Array, own: nnx.State, index: Array) -> Array:
            layer = nnx.merge(graph, own)
            return layer(
                x_BLD,
                segments_BL,
                positions_BL,
                rng=fold(rng, index),
                mechanism=mechanism,
                mechanism_rng=fold(mechanism_rng, index),
                is_global_BL=is_global_BL,
            )

        def apply(x_BLD: Array, part: tuple[nnx.State | None, Array]) -> tuple[Array, None]:
            own, indices = part
            for turn in range(turns):
                layer_parameters = parameters if own is None else jax.tree.map(lambda leaf, turn=turn: leaf[turn], own)
                one = rematerialised(
                    functools.partial(apply_turn, mechanisms[turn]), self.config.remat, in_scan=turns == 1
                )
                x_BLD = one(x_BLD, layer_parameters, indices[turn])
            return x_BLD, None

        def by_turns(leaf: Array) -> Array:
            return leaf.reshape(-1, turns, *leaf.shape[1:])

        own = None if self.config.sharing == 'all' else jax.tree.map(by_turns, parameters)
        repeats = self.config.layers // turns
        parts = (own, by_turns(jnp.arange(self.config.layers)))
        out_BLD, _ = jax.lax.scan(apply, x_BLD, parts, unroll=max(1, min(self.config.scan_unroll // turns, repeats)))
        return out_BLD


def layer_mechanisms(config: ModelConfig) -> tuple[Mechanism, ...]:
    """The mechanism of each layer: the config's in turn, patterns that draw something drawn for each layer."""
    turns = config.mechanisms
    return tuple(turns[layer % len(turns)].for_layer(layer) for layer in range(config.layers))


def period(mechanisms: tuple[Mechanism, ...]) -> int:
    """The smallest divisor p of their number so that they repeat every p layers: what one step of the scan unrolls."""
    count = len(mechanisms)
    divisors = (number for number in range(1, count + 1) if count % number == 0)
    return next(p for p in divisors if all(mechanisms[i] == mechanisms[i % p] for i in range(count)))


def stacked_layers(config: ModelConfig, rngs: nnx.Rngs) -> Layer:
    """N layers with independent initial parameters, each array stacked along a leading axis of size N."""

    @nnx.split_rngs(splits=config.layers)
    @nnx.vmap(in_axes=0, out_axes=0)
    def create(rngs: nnx.Rngs) -> Layer:
        return Layer(config, rngs=rngs)

    return create(rngs)


def rematerialised(apply: Callable, remat: str, *, in_scan: bool = True) -> Callable:
    """`apply` with its intermediate values kept ('none'), recomputed ('full'), or all but products ('dots').

    A scan keeps the compiler from merging the recomputation with the forward pass; `in_scan=False` asks for it.
    """
    if remat == 'none':
        return apply
    policies = {
        'full': jax.checkpoint_policies.nothing_saveable,
        'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    }
    return jax.checkpoint(apply, policy=policies[remat], prevent_cse=not in_scan)
