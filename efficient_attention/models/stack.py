"""N layers under one scan, separate or shared, plain or reversible, with a choice of what the backward recomputes.

The scan makes the program, and so the compile time, independent of N. Separate layers keep their parameters stacked
along a leading axis of size N.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.errors import InputError
from efficient_attention.models.config import ModelConfig
from efficient_attention.models.memory import Memory
from efficient_attention.models.position_bias import PositionBias
from efficient_attention.models.reversible import Plan, own_of, reversible
from efficient_attention.modules.attention import LayerMemory
from efficient_attention.modules.distances import DistanceBiases
from efficient_attention.modules.layer import Layer, fold


class Context(NamedTuple):
    """What every layer reads beside its input; the fields are those of `Stack.__call__`."""

    segments_BL: Array
    positions_BL: Array
    rng: Array | None = None
    mechanism_rng: Array | None = None
    is_global_BL: Array | None = None
    bias: Any = None  # on the logits, as `attend` takes it

    def options(self, number: Array) -> dict[str, Any]:
        """The keyword arguments of layer `number`, with keys of its own."""
        return {
            'rng': fold(self.rng, number),
            'mechanism_rng': fold(self.mechanism_rng, number),
            'is_global_BL': self.is_global_BL,
            'bias': self.bias,
        }


class Shared(NamedTuple):
    """What all layers read and gradients flow into: the parameters of a shared layer, a bias on the logits."""

    layer: nnx.State | None = None
    bias: Any = None


Parameters = tuple[nnx.State | None, Shared]  # a layer's own, those of all


class Stack(nnx.Module):
    """The layers of an encoder or decoder, [B, L, D] -> [B, L, D]; `causal` says that no query reads a later key."""

    def __init__(self, config: ModelConfig, *, causal: bool = False, rngs: nnx.Rngs) -> None:
        self.config = config
        self.position_bias = make_position_bias(config, causal, rngs)
        self.layers = stacked_layers(config, rngs) if config.is_stacked else Layer(config, rngs=rngs)

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
        bias = None if self.position_bias is None else self.position_bias(positions_BL)
        context = Context(segments_BL, positions_BL, rng, mechanism_rng, is_global_BL)
        if self.config.stack == 'reversible':
            return reversible(*self.reversible_parts(bias), context, x_BLD)
        return self.run(x_BLD, context._replace(bias=bias), None)[0]

    def continued(
        self, x_BLD: Array, segments_BL: Array, memory: Memory, *, rng: Array | None = None
    ) -> tuple[Array, Memory]:
        """The last layer's output for the segment after `memory`, and the memory after it; a plain stack alone."""
        positions_BL = jnp.broadcast_to(jnp.arange(x_BLD.shape[1]), x_BLD.shape[:2])
        bias = None if self.position_bias is None else self.position_bias.function()
        context = Context(segments_BL, positions_BL, rng, bias=bias)
        memory = jax.lax.stop_gradient(memory)
        x_BLD, inputs_NBLD = self.run(x_BLD, context, memory)
        return x_BLD, memory.after(inputs_NBLD, segments_BL)

    def run(self, x_BLD: Array, context: Context, memory: Memory | None) -> tuple[Array, Array]:
        """The last layer's output, and the inputs [N, B, L, D] of all layers if there is a memory for them."""
        graph, _ = nnx.split(self.layers)
        mechanisms, (own, shared), unroll = self.turns()
        count = len(mechanisms)
        numbers = jnp.arange(self.config.layers).reshape(-1, count)
        states = None if memory is None else memory.states_BNMD.swapaxes(0, 1)
        states = None if states is None else states.reshape(*numbers.shape, *states.shape[1:])

        def apply(x_BLD: Array, part: tuple[nnx.State | None, Array, Array | None]) -> tuple[Array, list[Array]]:
            own, numbers, states = part
            inputs = []
            for turn, mechanism in enumerate(mechanisms):
                one = rematerialised(
                    functools.partial(apply_layer, graph, mechanism, context), self.config.remat, in_scan=count == 1
                )
                before = None if memory is None or states is None else LayerMemory(states[turn], memory.segments_BM)
                inputs += [] if before is None else [x_BLD]
                x_BLD = one(shared if own is None else own_of(own, turn), numbers[turn], before, x_BLD)
            return x_BLD, inputs

        x_BLD, inputs = jax.lax.scan(apply, x_BLD, (own, numbers, states), unroll=unroll)
        return x_BLD, jax.lax.collapse(jnp.stack(inputs, axis=1), 0, 2) if inputs else x_BLD[None, :0]

    def turns(self) -> tuple[tuple[Mechanism, ...], tuple[nnx.State | None, nnx.State | None], int]:
        """The mechanisms of one step of the scan; own parameters by step and turn, or shared ones; steps to unroll."""
        config = self.config
        mechanisms = layer_mechanisms(config)
        mechanisms = mechanisms[: period(mechanisms)]
        count = len(mechanisms)
        unroll = max(1, min(config.scan_unroll // count, config.layers // count))
        parameters = nnx.state(self.layers)
        if not config.is_stacked:
            return mechanisms, (None, parameters), unroll
        if config.sharing == 'all':  # groups: each layer gets a copy of its group's, their gradients are summed
            numbers = np.asarray(config.layer_numbers)
            parameters = jax.tree.map(lambda leaf: leaf[numbers], parameters)
        return (
            mechanisms,
            (jax.tree.map(lambda leaf: leaf.reshape(-1, count, *leaf.shape[1:]), parameters), None),
            unroll,
        )

    def reversible_parts(self, bias: Any = None) -> tuple[Plan, nnx.State | None, Shared]:
        """The first arguments of the functions of models/reversible.py, for layers with this bias on their logits."""
        graph, _ = nnx.split(self.layers)
        mechanisms, (own, shared), unroll = self.turns()
        branches = tuple(
            (functools.partial(attention_branch, graph, mechanism), functools.partial(feed_forward_branch, graph))
            for mechanism in mechanisms
        )
        return Plan(branches, self.config.layers, unroll), own, Shared(shared, bias)


def apply_layer(
    graph: nnx.GraphDef,
    mechanism: Mechanism,
    context: Context,
    parameters: nnx.State,
    number: Array,
    memory: LayerMemory | None,
    x_BLD: Array,
) -> Array:
    """The output of layer `number`."""
    layer, options = nnx.merge(graph, parameters), context.options(number)
    if memory is not None:
        options |= {'memory': memory}
    return layer(x_BLD, context.segments_BL, context.positions_BL, mechanism=mechanism, **options)


def attention_branch(
    graph: nnx.GraphDef, mechanism: Mechanism, parameters: Parameters, context: Context, number: Array, x_BLD: Array
) -> Array:
    """What the attention of layer `number` adds: f of a reversible layer."""
    options = context._replace(bias=parameters[1].bias).options(number)
    layer = nnx.merge(graph, layer_state(parameters))
    return layer.attention_branch(x_BLD, context.segments_BL, context.positions_BL, mechanism=mechanism, **options)


def feed_forward_branch(
    graph: nnx.GraphDef, parameters: Parameters, context: Context, number: Array, x_BLD: Array
) -> Array:
    """What the feed-forward sub-layer of layer `number` adds: g of a reversible layer."""
    layer = nnx.merge(graph, layer_state(parameters))
    return layer.feed_forward_branch(x_BLD, rng=fold(context.rng, number))


def layer_state(parameters: Parameters) -> nnx.State:
    """The parameters of one layer, its own or those that all share."""
    own, shared = parameters
    state = shared.layer if own is None else own
    assert state is not None
    return state


def layer_mechanisms(config: ModelConfig) -> tuple[Mechanism, ...]:
    """The mechanism of each layer: the config's in turn, patterns that draw something drawn for each layer."""
    turns = config.mechanisms
    return tuple(turns[layer % len(turns)].for_layer(layer) for layer in range(config.layers))


def period(mechanisms: tuple[Mechanism, ...]) -> int:
    """The smallest divisor p of their number so that they repeat every p layers: what one step of the scan unrolls."""
    count = len(mechanisms)
    divisors = (number for number in range(1, count + 1) if count % number == 0)
    return next(p for p in divisors if all(mechanisms[i] == mechanisms[i % p] for i in range(count)))


def make_position_bias(config: ModelConfig, causal: bool, rngs: nnx.Rngs) -> PositionBias | DistanceBiases | None:
    """What positions add to the logits of all layers alike; None where nothing does, or each layer has its own.

    Raises:
        InputError: relative attention by distances behind alone, in a stack whose queries read later keys.
    """
    if config.relative == 'none':
        return None
    if config.relative != 'transformer_xl':
        return PositionBias(config, causal=causal, rngs=rngs)
    if not causal:
        raise InputError(
            "model.relative is 'transformer_xl', which counts distances behind a token: for decoders alone"
        )
    return DistanceBiases(config, rngs=rngs) if config.relative_shared_biases else None


def stacked_layers(config: ModelConfig, rngs: nnx.Rngs) -> Layer:
    """Layers with independent initial parameters, each array stacked along a leading axis: N, or those of groups."""
    count = len(set(config.layer_numbers))

    @nnx.split_rngs(splits=count)
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
