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

from efficient_attention.attention.mechanisms import Mechanism
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.memory import Memory
from efficient_attention.models.position_bias import PositionBias
from efficient_attention.models.reversible import Plan, reversible, turn_of
from efficient_attention.modules.attention import LayerMemory, OtherSequence
from efficient_attention.modules.distances import DistanceBiases
from efficient_attention.modules.layer import Context, Layer
from efficient_attention.modules.sub_layer import SELF_ATTENTION_LAYER, SubLayer

# Fields of a context that gradients flow into.
DIFFERENTIABLE = ('bias', 'distance_biases', 'other_BMD')


class Shared(NamedTuple):
    """What all layers read and gradients flow into: the parameters of a shared layer, and `DIFFERENTIABLE` fields."""

    layer: nnx.State | None
    read: dict[str, Any]


Parameters = tuple[nnx.State | None, Shared]  # of one layer alone, of all layers


class Stack(nnx.Module):
    """The layers of an encoder or decoder, [B, L, D] -> [B, L, D].

    Args:
        config: of the layers, and how they are stacked.
        causal: whether no query reads a later key.
        sub_layers: what each layer is made of.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        causal: bool = False,
        sub_layers: tuple[SubLayer, ...] = SELF_ATTENTION_LAYER,
        rngs: nnx.Rngs,
    ) -> None:
        self.config = config
        self.position_bias = make_position_bias(config, causal, rngs)
        make = functools.partial(Layer, config, sub_layers=sub_layers)
        self.layers = (
            stacked_layers(make, len(set(config.layer_numbers)), rngs) if config.is_stacked else make(rngs=rngs)
        )

    def __call__(
        self,
        x_BLD: Array,
        segments_BL: Array,
        positions_BL: Array,
        *,
        rng: Array | None = None,
        mechanism_rng: Array | None = None,
        is_global_BL: Array | None = None,
        other: OtherSequence | None = None,
    ) -> Array:
        """The last layer's output; layer i draws from `rng` (a key, or one a row), `mechanism_rng` (a key) and i."""
        terms = self.logit_terms(positions_BL)
        context = Context(segments_BL, positions_BL, rng, mechanism_rng, is_global_BL, **terms)
        if other is not None:
            context = context._replace(other_BMD=other.states_BMD, other_segments_BM=other.segments_BM)
        if self.config.stack == 'reversible':
            read = {name: getattr(context, name) for name in DIFFERENTIABLE}
            rest = context._replace(bias=None, distance_biases=None, other_BMD=None)
            return reversible(*self.reversible_parts(**read), rest, x_BLD)
        return self.run(x_BLD, context, None)[0]

    def continued(
        self, x_BLD: Array, segments_BL: Array, memory: Memory, *, rng: Array | None = None
    ) -> tuple[Array, Memory]:
        """The last layer's output for the segment after `memory`, and the memory after it; a plain stack alone."""
        positions_BL = jnp.broadcast_to(jnp.arange(x_BLD.shape[1]), x_BLD.shape[:2])
        context = Context(segments_BL, positions_BL, rng, **self.logit_terms())
        memory = jax.lax.stop_gradient(memory)
        x_BLD, inputs_NBLD = self.run(x_BLD, context, memory)
        return x_BLD, memory.after(inputs_NBLD, segments_BL)

    def logit_terms(self, positions_BL: Array | None = None) -> dict[str, Any]:
        """What positions add to the logits of all layers, as arguments of `Attention`; none where nothing is added.

        Without `positions_BL` places in the row are positions, of rows of any length.
        """
        if self.position_bias is None:
            return {}
        if isinstance(self.position_bias, DistanceBiases):
            return {'distance_biases': self.position_bias()}
        bias = self.position_bias
        return {'bias': bias.function() if positions_BL is None else bias(positions_BL)}

    def run(self, x_BLD: Array, context: Context, memory: Memory | None) -> tuple[Array, Array]:
        """The last layer's output, and the inputs [N, B, L, D] of all layers if there is a memory for them."""
        graph, _ = nnx.split(self.layers)
        mechanisms, (separate, shared), unroll = self.turns()
        count = len(mechanisms)
        numbers = jnp.arange(self.config.layers).reshape(-1, count)
        states = None if memory is None else memory.states_BNMD.swapaxes(0, 1)
        states = None if states is None else states.reshape(*numbers.shape, *states.shape[1:])

        def apply(x_BLD: Array, part: tuple[nnx.State | None, Array, Array | None]) -> tuple[Array, list[Array]]:
            separate, numbers, states = part
            inputs = []
            for turn, mechanism in enumerate(mechanisms):
                one = rematerialised(
                    functools.partial(apply_layer, graph, mechanism, context), self.config.remat, in_scan=count == 1
                )
                before = None if memory is None or states is None else LayerMemory(states[turn], memory.segments_BM)
                inputs += [] if before is None else [x_BLD]
                parameters = shared if separate is None else turn_of(separate, turn)
                x_BLD = one(parameters, numbers[turn], before, x_BLD)
            return x_BLD, inputs

        x_BLD, inputs = jax.lax.scan(apply, x_BLD, (separate, numbers, states), unroll=unroll)
        return x_BLD, jax.lax.collapse(jnp.stack(inputs, axis=1), 0, 2) if inputs else x_BLD[None, :0]

    def turns(self) -> tuple[tuple[Mechanism, ...], tuple[nnx.State | None, nnx.State | None], int]:
        """The mechanisms of one step of the scan; parameters by step and turn, or shared ones; steps to unroll."""
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

    def reversible_parts(self, **read: Any) -> tuple[Plan, nnx.State | None, Shared]:
        """The first arguments of the functions of models/reversible.py, for layers that read these fields."""
        graph, _ = nnx.split(self.layers)
        mechanisms, (separate, shared), unroll = self.turns()
        branches = tuple(
            tuple(functools.partial(layer_branch, graph, mechanism, sub) for sub in self.layers.sub_layers)
            for mechanism in mechanisms
        )
        return Plan(branches, self.config.layers, unroll), separate, Shared(shared, read)


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
    streams, _ = nnx.merge(graph, parameters).run((x_BLD,), context.of_layer(number, memory), mechanism)
    return streams[0]


def layer_branch(
    graph: nnx.GraphDef,
    mechanism: Mechanism,
    sub: SubLayer,
    parameters: Parameters,
    context: Context,
    number: Array,
    x_BLD: Array,
) -> Array:
    """What a sub-layer of layer `number` adds: a branch of a reversible layer."""
    separate, shared = parameters
    layer = nnx.merge(graph, shared.layer if separate is None else separate)
    return layer.added(sub, x_BLD, context._replace(**shared.read).of_layer(number), mechanism)


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
