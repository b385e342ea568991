"""N layers, separate or shared, plain or reversible, with a choice of what the backward pass recomputes.

In training they run under one scan, which makes the program, and so the compile time, independent of N. Separate layers
keep their parameters stacked along a leading axis of size N; for inference, see inference_layout.py.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jaxtyping import Int

from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.memory import AnyMemory, StateMemory, before_layer, empty_states, first_memory
from efficient_attention.models.position_bias import LogitTerms, PositionBias
from efficient_attention.models.reversible import Plan, reversible, turn_of
from efficient_attention.models.taps import LayerTap, Taps, taps_of
from efficient_attention.modules.context import (
    AttentionMemory,
    CompressedLayerMemory,
    Context,
    LayerMemory,
    OtherSequence,
)
from efficient_attention.modules.distances import DistanceBiases
from efficient_attention.modules.layer import Layer
from efficient_attention.modules.learned import learned_arrays, make_learned
from efficient_attention.modules.sub_layer import RECURRENT, Streams, SubLayer, begin, end
from efficient_attention.modules.told import Told, over_layers
from efficient_attention.recurrence.recur import State

# Fields of a context that gradients flow into.
DIFFERENTIABLE = ('bias', 'distance_biases', 'learned', 'other_BMD')


class Shared(NamedTuple):
    """Inputs of all layers that gradients flow into: a shared layer's parameters, and `DIFFERENTIABLE` fields."""

    layer: nnx.State | None
    read: dict[str, Any]


class HandedOut(NamedTuple):
    """What layers hand out beside their streams, stacked over the N layers.

    Args:
        kept: what the memory keeps of them; None without memory.
        tap: None where no taps are asked for.
        told: see modules/told.py.
    """

    kept: Any
    tap: LayerTap | None
    told: Told


BeforeLayer = AttentionMemory | tuple[State, ...] | None
Parameters = tuple[nnx.State | None, Shared]  # of one layer alone, of all layers


class Stack(nnx.Module):
    """The layers of an encoder or decoder, [B, L, D] -> [B, L, D].

    Args:
        config: of the layers, and how they are stacked.
        causal: whether no query reads a later key.
        sub_layers: what each layer is made of; by default as the config says.
        first: the number of its first layer, where others stand below it.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        causal: bool = False,
        sub_layers: tuple[SubLayer, ...] | None = None,
        first: int = 0,
        rngs: nnx.Rngs,
    ) -> None:
        self.config, self.first = config, first
        self.position_bias: LogitTerms | None = make_position_bias(config, causal, rngs)
        self.learned = make_learned(config, config.mechanisms[0], is_shared=True, rngs=rngs)
        make = functools.partial(Layer, config, sub_layers=sub_layers)
        self.layers: Any = (
            stacked_layers(make, len(set(config.layer_numbers)), rngs) if config.is_stacked else make(rngs=rngs)
        )
        self.is_separate = False

    def lay_out_separately(self) -> None:
        """Gives each layer arrays that are its alone, in place of a share of stacked ones (inference_layout.py)."""
        self.layers, self.is_separate = nnx.List(self.parameter_layers()), True

    def __call__(self, x_BLD: Array, segments_BL: Array, positions_BL: Array, **options: Any) -> Array:
        """The last layer's output; arguments as of `context`.

        Recurrent layers begin with the first states that the other sequence brings, where it brings some.
        """
        context = self.context(segments_BL, positions_BL, **options)
        if self.config.stack == 'plain' or self.is_separate:
            return self.run(x_BLD, context, first_memory(options.get('other')))[0]
        read = {name: getattr(context, name) for name in DIFFERENTIABLE}
        nothing: dict[str, Any] = dict.fromkeys(DIFFERENTIABLE)
        return reversible(*self.reversible_parts(**read), context._replace(**nothing), x_BLD)

    def tapped(self, x_BLD: Array, segments_BL: Array, positions_BL: Array, **options: Any) -> tuple[Array, Taps]:
        """The last layer's output, and what all layers computed on the way; arguments as of `context`.

        A reversible stack, whose layers' outputs are kept here anyway, is differentiated like a plain one.
        """
        context, memory = self.context(segments_BL, positions_BL, **options), first_memory(options.get('other'))
        x_BLD, handed_out = self.run(x_BLD, context, memory, is_tapped=True)
        assert handed_out.tap is not None
        return x_BLD, taps_of(handed_out.tap, x_BLD.dtype)

    def with_states(
        self, x_BLD: Array, segments_BL: Array, positions_BL: Array, **options: Any
    ) -> tuple[Array, StateMemory]:
        """The last layer's output, and the states of recurrent layers after it; arguments as of `context`."""
        context, memory = self.context(segments_BL, positions_BL, **options), empty_states(self.config, len(x_BLD))
        x_BLD, handed_out = self.run(x_BLD, context, memory)
        return x_BLD, memory.after(handed_out.kept, segments_BL)

    def continued(
        self, x_BLD: Array, segments_BL: Array, memory: AnyMemory, *, rng: Array | None = None
    ) -> tuple[Array, AnyMemory, Told]:
        """The last layer's output for the segment after `memory`, the memory after it, and what all layers told.

        Of a plain stack alone.
        """
        positions_BL = jnp.broadcast_to(jnp.arange(x_BLD.shape[1]), x_BLD.shape[:2])
        context = Context(segments_BL, positions_BL, rng, **self.shared_terms())
        memory = jax.lax.stop_gradient(memory)
        x_BLD, handed_out = self.run(x_BLD, context, memory)
        return x_BLD, memory.after(handed_out.kept, segments_BL), over_layers(handed_out.told)

    def context(
        self,
        segments_BL: Array,
        positions_BL: Array,
        *,
        rng: Array | None = None,
        mechanism_rng: Array | None = None,
        is_global_BL: Array | None = None,
        other: OtherSequence | None = None,
    ) -> Context:
        """What all layers read.

        Args:
            segments_BL: 0 = padding, 1, 2, ... = packed examples.
            positions_BL: of the tokens in their texts.
            rng: a key, or one a row; turns dropout on. Layer i draws from it, from `mechanism_rng` and from i.
            mechanism_rng: a key for mechanisms that draw at random.
            is_global_BL: tokens with global attention.
            other: what cross-attention reads.
        """
        context = Context(
            segments_BL, positions_BL, rng, mechanism_rng, is_global_BL, **self.shared_terms(positions_BL)
        )
        if other is None:
            return context
        return context._replace(
            other_BMD=other.states_BMD, other_segments_BM=other.segments_BM, other_positions_BM=other.positions_BM
        )

    def parameter_layers(self) -> tuple[Layer, ...]:
        """The layers that have parameters, one by one: as many as `config.layer_numbers` names."""
        if self.is_separate:
            return tuple(self.layers)
        if not self.config.is_stacked:
            return (self.layers,)
        graph, stacked = nnx.split(self.layers)
        count = len(set(self.config.layer_numbers))
        return tuple(
            nnx.merge(graph, jax.tree.map(lambda leaf, number=number: leaf[number], stacked)) for number in range(count)
        )

    def shared_terms(self, positions_BL: Array | None = None) -> dict[str, Any]:
        """The fields of `Context` that all layers share: terms of the logits, and what their mechanism learns for all.

        Args:
            positions_BL: of the tokens in their texts; the places in the row by default.
        """
        terms = {} if self.position_bias is None else self.position_bias.logit_terms(positions_BL)
        return terms | {'learned': learned_arrays(self.learned, None)}

    def run(
        self, x_BLD: Array, context: Context, memory: AnyMemory | None = None, *, is_tapped: bool = False
    ) -> tuple[Array, HandedOut]:
        """The last layer's output, and what all layers hand out, with a leading N."""
        streams = begin(x_BLD, is_reversible=self.config.stack == 'reversible')
        walk = self.walk if self.is_separate else self.scan
        streams, handed_out = walk(streams, context, memory, is_tapped)
        return end(streams, x_BLD.dtype), handed_out

    def walk(
        self, streams: Streams, context: Context, memory: AnyMemory | None, is_tapped: bool
    ) -> tuple[Streams, HandedOut]:
        """As `run`, one separate layer after another in a program that grows with their number."""
        layers, each = self.parameter_layers(), []
        for number, mechanism in enumerate(layer_mechanisms(self.config, self.first)):
            of_layers = None if memory is None else memory.by_layer()
            before = before_layer(memory, jax.tree.map(lambda leaf, number=number: leaf[number], of_layers))
            layer = layers[self.config.layer_numbers[number]]
            call = LayerCall(mechanism, context, is_tapped)
            streams, handed = call.run(layer, self.first + number, before, streams)
            each.append(handed)
        return streams, jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)

    def scan(
        self, streams: Streams, context: Context, memory: AnyMemory | None, is_tapped: bool
    ) -> tuple[Streams, HandedOut]:
        """As `run`, under one scan over layers."""
        graph, _ = nnx.split(self.layers)
        mechanisms, (separate, shared), unroll = self.turns()
        calls = [LayerCall(mechanism, context, is_tapped, graph).apply for mechanism in mechanisms]
        calls = [rematerialised(call, self.config.remat, in_scan=len(calls) == 1) for call in calls]
        numbers = (self.first + jnp.arange(self.config.layers)).reshape(-1, len(calls))
        of_layers = None if memory is None else memory.by_layer()
        of_layers = jax.tree.map(lambda leaf: leaf.reshape(*numbers.shape, *leaf.shape[1:]), of_layers)

        def step(streams: Streams, layers: tuple[nnx.State | None, Array, Any]) -> tuple[Streams, list[Any]]:
            separate, numbers, of_layers = layers
            each = []
            for turn, call in enumerate(calls):
                before = before_layer(memory, turn_of(of_layers, turn))
                parameters = shared if separate is None else turn_of(separate, turn)
                streams, handed = call(parameters, numbers[turn], before, streams)
                each.append(handed)
            return streams, each

        streams, each = jax.lax.scan(step, streams, (separate, numbers, of_layers), unroll=unroll)
        return streams, jax.tree.map(lambda *turns: jax.lax.collapse(jnp.stack(turns, axis=1), 0, 2), *each)

    def turns(self) -> tuple[tuple[Mechanism, ...], tuple[nnx.State | None, nnx.State | None], int]:
        """(Mechanisms of one scan step, (parameters [steps, turns, ...], shared parameters), steps to unroll).

        A turn is a layer's place within a step of the scan. One of the two kinds of parameters is None.
        """
        config = self.config
        mechanisms = layer_mechanisms(config, self.first)
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

    def reversible_parts(self, **read: Any) -> tuple[Plan, nnx.State | None, Shared]:
        """The first arguments of the functions of models/reversible.py, for layers that read these fields."""
        graph, _ = nnx.split(self.layers)
        mechanisms, (separate, shared), unroll = self.turns()
        branches = tuple(
            tuple(functools.partial(layer_branch, graph, mechanism, sub) for sub in self.layers.sub_layers)
            for mechanism in mechanisms
        )
        return Plan(branches, self.config.layers, unroll), separate, Shared(shared, read)


class LayerCall(NamedTuple):
    """How a layer of a plain stack is called, or one of a reversible stack without its inversion."""

    mechanism: Mechanism
    context: Context
    is_tapped: bool
    graph: Any = None  # of layers that are given as parameters

    def apply(
        self, parameters: Any, number: Int[Array, ''], memory: BeforeLayer, streams: Streams
    ) -> tuple[Streams, HandedOut]:
        """`run` of a layer with these parameters."""
        return self.run(nnx.merge(self.graph, parameters), number, memory, streams)

    def run(
        self, layer: Layer, number: Array | int, memory: BeforeLayer, streams: Streams
    ) -> tuple[Streams, HandedOut]:
        """The streams after layer `number`, and what it hands out."""
        read, context = streams[0], self.context.of_layer(number, memory)
        streams, operands = layer.run(streams, context, self.mechanism)
        kept: Any = operands.pop(RECURRENT.name, None)
        told: Told = {}
        if isinstance(memory, LayerMemory | CompressedLayerMemory):
            kept, told = layer.remembered(read, context, self.mechanism)
        tap = (streams, operands) if self.is_tapped else None
        return streams, HandedOut(None if memory is None else kept, tap, told)


def layer_branch(
    graph: nnx.GraphDef,
    mechanism: Mechanism,
    sub: SubLayer,
    parameters: Parameters,
    context: Context,
    number: Int[Array, ''],
    x_BLD: Array,
) -> Array:
    """What a sub-layer of layer `number` adds: a branch of a reversible layer."""
    separate, shared = parameters
    layer = nnx.merge(graph, shared.layer if separate is None else separate)
    return layer.added(sub, x_BLD, context._replace(**shared.read).of_layer(number), mechanism)


def layer_mechanisms(config: ModelConfig, first: int = 0) -> tuple[Mechanism, ...]:
    """The mechanism of each layer: the config's in turn, patterns that draw something drawn for each layer.

    `first` is the number of the first one.
    """
    turns = config.mechanisms
    return tuple(turns[layer % len(turns)].for_layer(first + layer) for layer in range(config.layers))


def period(mechanisms: tuple[Mechanism, ...]) -> int:
    """The smallest divisor p of their number so that they repeat every p layers: what one step of the scan unrolls."""
    count = len(mechanisms)
    divisors = (number for number in range(1, count + 1) if count % number == 0)
    return next(p for p in divisors if all(mechanisms[i] == mechanisms[i % p] for i in range(count)))


def make_position_bias(config: ModelConfig, causal: bool, rngs: nnx.Rngs) -> PositionBias | DistanceBiases | None:
    """What positions add to the logits of all layers alike; None where nothing does, or each layer has its biases.

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


def stacked_layers(make: Callable[..., Layer], count: int, rngs: nnx.Rngs) -> Layer:
    """`count` layers with independent initial parameters, each array stacked along a leading axis."""

    @nnx.split_rngs(splits=count)
    @nnx.vmap(in_axes=0, out_axes=0)
    def create(rngs: nnx.Rngs) -> Layer:
        return make(rngs=rngs)

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
