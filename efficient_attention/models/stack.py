"""N layers under one scan, separate or shared, plain or reversible, with a choice of what the backward recomputes.

The scan makes the program, and so the compile time, independent of N. Separate layers keep their parameters stacked
along a leading axis of size N.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.mechanisms import Mechanism
from efficient_attention.models.config import ModelConfig
from efficient_attention.models.reversible import Plan, parameters_of, reversible
from efficient_attention.modules.layer import Layer, fold


class Context(NamedTuple):
    """What every layer reads beside its input; the fields are those of `Stack.__call__`."""

    segments_BL: Array
    positions_BL: Array
    rng: Array | None = None
    mechanism_rng: Array | None = None
    is_global_BL: Array | None = None

    def options(self, number: Array) -> dict[str, Array | None]:
        """The keyword arguments of layer `number`, with keys of its own."""
        return {
            'rng': fold(self.rng, number),
            'mechanism_rng': fold(self.mechanism_rng, number),
            'is_global_BL': self.is_global_BL,
        }


class Stack(nnx.Module):
    """The layers of an encoder or decoder, [B, L, D] -> [B, L, D]."""

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
        context = Context(segments_BL, positions_BL, rng, mechanism_rng, is_global_BL)
        if self.config.stack == 'reversible':
            return reversible(*self.reversible_parts(), context, x_BLD)
        graph, _ = nnx.split(self.layers)
        mechanisms, (own, shared), unroll = self.turns()
        numbers = jnp.arange(self.config.layers).reshape(-1, len(mechanisms))

        def apply(x_BLD: Array, part: tuple[nnx.State | None, Array]) -> tuple[Array, None]:
            own, numbers = part
            for turn, mechanism in enumerate(mechanisms):
                one = rematerialised(
                    functools.partial(apply_layer, graph, mechanism, context),
                    self.config.remat,
                    in_scan=len(mechanisms) == 1,
                )
                x_BLD = one(parameters_of(own, shared, turn), numbers[turn], x_BLD)
            return x_BLD, None

        return jax.lax.scan(apply, x_BLD, (own, numbers), unroll=unroll)[0]

    def turns(self) -> tuple[tuple[Mechanism, ...], tuple[nnx.State | None, nnx.State | None], int]:
        """The mechanisms of one step of the scan; own parameters by step and turn, or shared ones; steps to unroll."""
        config = self.config
        mechanisms = layer_mechanisms(config)
        mechanisms = mechanisms[: period(mechanisms)]
        count = len(mechanisms)
        unroll = max(1, min(config.scan_unroll // count, config.layers // count))
        parameters = nnx.state(self.layers)
        if config.sharing == 'all':
            return mechanisms, (None, parameters), unroll
        return (
            mechanisms,
            (jax.tree.map(lambda leaf: leaf.reshape(-1, count, *leaf.shape[1:]), parameters), None),
            unroll,
        )

    def reversible_parts(self) -> tuple[Plan, nnx.State | None, nnx.State | None]:
        """The first arguments of the functions of models/reversible.py."""
        graph, _ = nnx.split(self.layers)
        mechanisms, (own, shared), unroll = self.turns()
        branches = tuple(
            (functools.partial(attention_branch, graph, mechanism), functools.partial(feed_forward_branch, graph))
            for mechanism in mechanisms
        )
        return Plan(branches, self.config.layers, unroll), own, shared


def apply_layer(
    graph: nnx.GraphDef, mechanism: Mechanism, context: Context, parameters: nnx.State, number: Array, x_BLD: Array
) -> Array:
    """The output of layer `number`."""
    layer, options = nnx.merge(graph, parameters), context.options(number)
    return layer(x_BLD, context.segments_BL, context.positions_BL, mechanism=mechanism, **options)


def attention_branch(
    graph: nnx.GraphDef, mechanism: Mechanism, parameters: nnx.State, context: Context, number: Array, x_BLD: Array
) -> Array:
    """What the attention of layer `number` adds: f of a reversible layer."""
    layer, options = nnx.merge(graph, parameters), context.options(number)
    return layer.attention_branch(x_BLD, context.segments_BL, context.positions_BL, mechanism=mechanism, **options)


def feed_forward_branch(
    graph: nnx.GraphDef, parameters: nnx.State, context: Context, number: Array, x_BLD: Array
) -> Array:
    """What the feed-forward sub-layer of layer `number` adds: g of a reversible layer."""
    return nnx.merge(graph, parameters).feed_forward_branch(x_BLD, rng=fold(context.rng, number))


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
