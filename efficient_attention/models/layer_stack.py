"""A stack of N layers: with separate or shared parameters, plain or reversible, and with optional rematerialisation.

For training the layers run under one scan, so program size and compile time do not depend on N. Parameters of separate
layers are stacked along a leading axis of size N. For inference, see unstacked_layers.py.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jaxtyping import Int

from efficient_attention.attention.choice_log import Caller, calling_from
from efficient_attention.attention.device_mesh import is_axis_sharded
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.models.layer_activations import (
    LayerActivations,
    LayerOutputAndOperands,
    stack_layer_activations,
)
from efficient_attention.models.position_bias import PositionBias
from efficient_attention.models.reversible import ReversibleStackSpec, run_reversible_stack
from efficient_attention.models.segment_memory import AnyMemory, StateMemory, empty_states, first_memory
from efficient_attention.modules.layer import (
    CROSS_ATTENTION,
    RECURRENT,
    Layer,
    Streams,
    SubLayer,
    initial_streams,
    merge_streams,
)
from efficient_attention.modules.layer_context import AttentionMemory, Context, SharedTerms
from efficient_attention.modules.learned_operands import make_learned
from efficient_attention.modules.memory_compression import AuxLosses, sum_over_layers
from efficient_attention.modules.transformer_xl_distances import DistanceBiases
from efficient_attention.recurrence.run_cell import RecurrentState


class SharedLayerInputs(NamedTuple):
    """The inputs with gradients that all layers of a reversible stack share: shared parameters, terms of the logits,
    the encoded source.
    """

    layer: nnx.State | None
    terms: SharedTerms
    other_BMD: Any  # None without an encoded source


class LayerOutputs(NamedTuple):
    """The extra outputs of all N layers besides their hidden states, stacked over the layers.

    Args:
        new_memory: the layers' part of the new memory; None without memory.
        activations: the layer activations; None unless requested.
        aux_losses: the auxiliary losses of compressed memory.
    """

    new_memory: Any
    activations: LayerOutputAndOperands | None
    aux_losses: AuxLosses


BeforeLayer = AttentionMemory | tuple[RecurrentState, ...] | None


class ScanGroups(NamedTuple):
    """The mechanisms and parameters with which a scan runs the layers of a stack.

    Each step of the scan runs one layer per mechanism. A turn is the index of a layer in its step. Exactly one of
    `separate` and `shared` is None.

    Args:
        mechanisms: one per turn.
        separate: parameters of single layers, leaves [steps, turns, ...].
        shared: parameters of all layers.
        unroll: number of scan steps compiled in sequence.
    """

    mechanisms: tuple[Mechanism, ...]
    separate: nnx.State | None
    shared: nnx.State | None
    unroll: int


class Stack(nnx.Module):
    """A stack of encoder or decoder layers, [B, L, D] -> [B, L, D].

    Args:
        config: the config of the layers and of the stack.
        causal: whether no query reads a later key.
        sub_layers: the sub-layers of each layer; by default from the config.
        first: number of the first layer, if other layers precede this stack.
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
        self.position_bias = make_position_bias(config, causal, rngs)
        self.learned = make_learned(config, config.mechanisms[0], is_shared=True, rngs=rngs)
        make = functools.partial(Layer, config, sub_layers=sub_layers)
        self.layers: Any = (
            stacked_layers(make, len(set(config.layer_to_param_index)), rngs) if config.is_stacked else make(rngs=rngs)
        )
        self.is_separate, self.is_stacked = False, config.is_stacked
        self.head_gates: Any = None  # see models/head_gates.py

    def unstack_layers(self) -> None:
        """Replaces the stacked parameter arrays by separate arrays for each layer; models/unstacked_layers.py explains
        why.
        """
        self.layers, self.is_separate = nnx.List(self.parameter_layers()), True

    def __call__(self, x_BLD: Array, context: Context) -> Array:
        """Returns the last layer's output [B, L, D].

        Args:
            x_BLD: the embedded tokens.
            context: inputs of all layers. Layer i folds its number into `rng` and `mechanism_rng`. Recurrent layers
                start with the initial states of the other sequence, if it has some.
        """
        context = context.with_shared_terms(self.shared_terms(context.positions_BL))
        if self.config.stack == 'reversible' and not self.is_separate:
            return run_reversible_stack(*self.reversible_parts(context), x_BLD)
        memory = None if context.other is None else first_memory(context.other)
        return self.run(x_BLD, context, memory)[0]

    def run(
        self, x_BLD: Array, context: Context, memory: AnyMemory | None = None, *, returns_activations: bool = False
    ) -> tuple[Array, LayerOutputs]:
        """Returns the last layer's output, and the extra outputs of all layers, stacked along a leading layer axis.

        Args:
            x_BLD: the input.
            context: inputs of all layers, including the terms of the logits.
            memory: the memory of earlier segments; None in most models.
            returns_activations: whether to return the layer activations.
        """
        streams = initial_streams(x_BLD, is_reversible=self.config.stack == 'reversible')
        if self.is_separate:
            streams, handed_out = self.run_unrolled_layers(streams, context, memory, returns_activations)
            return merge_streams(streams, x_BLD.dtype), handed_out
        # Each step of the scan runs one layer, or one layer per mechanism if layers alternate mechanisms.
        graph, turns = nnx.split(self.layers)[0], self.scan_groups()
        calls = [LayerCall(mechanism, context, returns_activations, graph).apply for mechanism in turns.mechanisms]
        calls = [with_rematerialisation(call, self.config.remat, in_scan=len(calls) == 1) for call in calls]
        numbers = (self.first + jnp.arange(self.config.layers)).reshape(-1, len(calls))
        memories = None if memory is None else memory.per_layer_arrays()
        memories = jax.tree.map(lambda leaf: leaf.reshape(*numbers.shape, *leaf.shape[1:]), memories)

        def step(streams: Streams, layers: tuple[nnx.State | None, Array, Any]) -> tuple[Streams, list[Any]]:
            separate, numbers, memories = layers
            each = []
            for turn, call in enumerate(calls):
                before = None if memory is None else memory.layer_memory(layer_slice(memories, turn))
                parameters = turns.shared if separate is None else layer_slice(separate, turn)
                with calling_from(self.caller_of_turn(turn, len(calls))):
                    streams, handed = call(parameters, numbers[turn], before, streams)
                each.append(handed)
            return streams, each

        streams, each = jax.lax.scan(step, streams, (turns.separate, numbers, memories), unroll=turns.unroll)
        handed_out = jax.tree.map(lambda *turns: jax.lax.collapse(jnp.stack(turns, axis=1), 0, 2), *each)
        return merge_streams(streams, x_BLD.dtype), handed_out

    def run_unrolled_layers(
        self, streams: Streams, context: Context, memory: AnyMemory | None, returns_activations: bool
    ) -> tuple[Streams, LayerOutputs]:
        """Runs the layers without a scan, from separate arrays per layer; returns the same results as `run`.

        The size of the compiled program grows with the number of layers.
        """
        layers, each = self.parameter_layers(), []
        for number, mechanism in enumerate(layer_mechanisms(self.config, self.first)):
            before = None if memory is None else memory.layer_memory(layer_slice(memory.per_layer_arrays(), number))
            graph, parameters = nnx.split(layers[self.config.layer_to_param_index[number]])
            call = LayerCall(mechanism, context, returns_activations, graph)
            with calling_from(self.caller_of_turn(number, self.config.layers)):
                streams, handed = call.apply(parameters, self.first + number, before, streams)
            each.append(handed)
        return streams, jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)

    def with_layer_activations(self, x_BLD: Array, context: Context) -> tuple[Array, LayerActivations]:
        """Returns the last layer's output and the activations of all layers: outputs, queries and keys.

        A reversible stack is differentiated here like a plain one, because the activations are stored anyway.
        """
        context = context.with_shared_terms(self.shared_terms(context.positions_BL))
        memory = None if context.other is None else first_memory(context.other)
        x_BLD, handed_out = self.run(x_BLD, context, memory, returns_activations=True)
        assert handed_out.activations is not None
        return x_BLD, stack_layer_activations(handed_out.activations, x_BLD.dtype)

    def with_recurrent_states(self, x_BLD: Array, context: Context) -> tuple[Array, StateMemory]:
        """Returns the last layer's output and the final states of the recurrent layers."""
        context = context.with_shared_terms(self.shared_terms(context.positions_BL))
        memory = empty_states(self.config, len(x_BLD))
        x_BLD, handed_out = self.run(x_BLD, context, memory)
        return x_BLD, memory.next_memory(handed_out.new_memory, context.segments_BL)

    def continue_from_memory(
        self, x_BLD: Array, segments_BL: Array, memory: AnyMemory, *, rng: Array | None = None
    ) -> tuple[Array, AnyMemory, AuxLosses]:
        """Returns the stack's output for the text segment after `memory`, the memory after this segment, and the
        auxiliary layer losses.

        This works only for plain stacks.
        """
        positions_BL = jnp.broadcast_to(jnp.arange(x_BLD.shape[1]), x_BLD.shape[:2])
        context = Context(segments_BL, positions_BL, rng).with_shared_terms(self.shared_terms())
        memory = jax.lax.stop_gradient(memory)
        x_BLD, handed_out = self.run(x_BLD, context, memory)
        return x_BLD, memory.next_memory(handed_out.new_memory, segments_BL), sum_over_layers(handed_out.aux_losses)

    def shared_terms(self, positions_BL: Array | None = None) -> SharedTerms:
        """Returns the attention terms that all layers share: the position bias, arrays that the mechanism learns
        for all layers, and the gates of the heads.

        Args:
            positions_BL: positions of the tokens in their texts; by default the indices in the row.
        """
        terms = SharedTerms() if self.position_bias is None else self.position_bias.shared_terms(positions_BL)
        return terms._replace(
            learned=None if self.learned is None else self.learned(),
            head_gates_NH=None if self.head_gates is None else self.head_gates[...],
        )

    def parameter_layers(self) -> tuple[Layer, ...]:
        """Returns the layers that have separate parameters; layers that share parameters appear only once.

        `config.layer_to_param_index` maps each layer's number to an index in the result.
        """
        if self.is_separate:
            return tuple(self.layers)
        if not self.is_stacked:
            return (self.layers,)
        graph, stacked = nnx.split(self.layers)
        count = len(set(self.config.layer_to_param_index))
        return tuple(nnx.merge(graph, layer_slice(stacked, number)) for number in range(count))

    def caller_of_turn(self, turn: int, turns: int) -> Caller:
        """Returns the `Caller` of attention for one of the layers of a scan step.

        A scan step runs `turns` layers one after the other. Layer number `turn` of all steps is traced once, so its
        `Caller` has every `turns`-th layer of the model.
        """
        layer: Layer = self.layers[0] if self.is_separate else self.layers
        numbers = tuple(range(self.first + turn, self.first + self.config.layers, turns))
        return Caller(numbers, 'decoder' if CROSS_ATTENTION in layer.sub_layers else '')

    def scan_groups(self) -> ScanGroups:
        """Returns the parameters and mechanisms with which a scan runs the layers."""
        config = self.config
        mechanisms = scan_mechanisms(config, self.first)
        count = len(mechanisms)
        unroll = max(1, min(config.scan_unroll // count, config.layers // count))
        parameters = nnx.state(self.layers)
        if not self.is_stacked:
            return ScanGroups(mechanisms, None, parameters, unroll)
        if config.sharing == 'all':  # each layer gets a copy of the parameters of its layer group
            numbers = np.asarray(config.layer_to_param_index)
            parameters = jax.tree.map(lambda leaf: leaf[numbers], parameters)
        separate = jax.tree.map(lambda leaf: leaf.reshape(-1, count, *leaf.shape[1:]), parameters)
        return ScanGroups(mechanisms, separate, None, unroll)

    def reversible_parts(
        self, context: Context
    ) -> tuple[ReversibleStackSpec, nnx.State | None, SharedLayerInputs, Context]:
        """Returns the arguments for the functions of models/reversible.py, except the input vectors."""
        graph, turns = nnx.split(self.layers)[0], self.scan_groups()
        callers = [self.caller_of_turn(turn, len(turns.mechanisms)) for turn in range(len(turns.mechanisms))]
        branches = tuple(
            tuple(
                calling_from(caller)(functools.partial(reversible_layer_branch, graph, mechanism, sub))
                for sub in self.layers.sub_layers
            )
            for mechanism, caller in zip(turns.mechanisms, callers, strict=True)
        )
        plan = ReversibleStackSpec(branches, self.config.layers, turns.unroll)
        terms, other_BMD = SharedTerms(**{name: getattr(context, name) for name in SharedTerms._fields}), None
        nothing: Any = None
        context = context.with_shared_terms(SharedTerms())
        if context.other is not None:
            other_BMD = context.other.states_BMD
            context = context._replace(other=context.other._replace(states_BMD=nothing, first_BNU=None))
        return plan, turns.separate, SharedLayerInputs(turns.shared, terms, other_BMD), context


class LayerCall(NamedTuple):
    """A layer as a function for a scan: its graph definition and mechanism, and the inputs of all layers."""

    mechanism: Mechanism
    context: Context
    returns_activations: bool
    graph: Any

    def apply(
        self, parameters: Any, number: Array | int, memory: BeforeLayer, streams: Streams
    ) -> tuple[Streams, LayerOutputs]:
        """Returns the residual streams after layer `number` with these parameters, and the layer's extra outputs."""
        layer: Layer = nnx.merge(self.graph, parameters)
        context = self.context.layer_context(number, memory)
        after, operands = layer.run(streams, context, self.mechanism)
        kept: Any = operands.pop(RECURRENT.name, None)
        aux_losses: AuxLosses = {}
        if isinstance(memory, AttentionMemory):
            kept, aux_losses = layer.memory_and_aux_losses(streams[0], context, self.mechanism)
        activations = (after, operands) if self.returns_activations else None
        return after, LayerOutputs(None if memory is None else kept, activations, aux_losses)


def reversible_layer_branch(
    graph: nnx.GraphDef,
    mechanism: Mechanism,
    sub: SubLayer,
    parameters: tuple[nnx.State | None, SharedLayerInputs],
    context: Context,
    number: Int[Array, ''],
    x_BLD: Array,
) -> Array:
    """Returns the output of one sub-layer, as a branch of a reversible layer."""
    separate, read = parameters
    context = context.with_shared_terms(read.terms)
    if context.other is not None:
        context = context._replace(other=context.other._replace(states_BMD=read.other_BMD))
    layer = nnx.merge(graph, read.layer if separate is None else separate)
    return layer.reversible_branch(sub, x_BLD, context.layer_context(number), mechanism)


def layer_slice(arrays: Any, number: int) -> Any:
    """Returns the slice of one layer from a pytree of arrays with a leading layer axis."""
    return jax.tree.map(lambda leaf: leaf[number], arrays)


def layer_mechanisms(config: ModelConfig, first: int = 0) -> tuple[Mechanism, ...]:
    """Returns the attention mechanism of each layer: the config's mechanisms in turn, with random patterns sampled per
    layer.

    `first` is the number of the first layer.
    """
    turns = config.mechanisms
    return tuple(turns[layer % len(turns)].for_layer(first + layer) for layer in range(config.layers))


def scan_mechanisms(config: ModelConfig, first: int = 0) -> tuple[Mechanism, ...]:
    """Returns the mechanisms of the layers that one step of a scan runs, in order.

    Layers whose mechanisms differ only in their random samples share a mechanism that stands for all these layers. So
    the program does not grow with their number. A sequence axis needs the tiles of each layer at trace time, so there
    each step runs a whole period of samples.
    """
    mechanisms, turns = layer_mechanisms(config, first), len(config.mechanisms)
    period = mechanism_period(mechanisms)
    if period <= turns or is_axis_sharded('L'):
        return mechanisms[:period]
    last = first + config.layers
    return tuple(
        mechanism.for_layer(tuple(range(first + turn, last, turns))) for turn, mechanism in enumerate(config.mechanisms)
    )


def mechanism_period(mechanisms: tuple[Mechanism, ...]) -> int:
    """Returns the smallest period with which the layers' mechanisms repeat; one scan step runs this number of
    layers.
    """
    count = len(mechanisms)
    divisors = (number for number in range(1, count + 1) if count % number == 0)
    return next(p for p in divisors if all(mechanisms[i] == mechanisms[i % p] for i in range(count)))


def make_position_bias(config: ModelConfig, causal: bool, rngs: nnx.Rngs) -> PositionBias | DistanceBiases | None:
    """Returns the position bias that all layers share; None without a position bias or if each layer has a separate
    one.

    Raises:
        InputError: `relative` is 'transformer_xl' in a stack that is not causal.
    """
    if config.relative == 'none':
        return None
    if config.relative != 'transformer_xl':
        return PositionBias(config, causal=causal, rngs=rngs)
    if not causal:
        raise InputError(
            "model.relative is 'transformer_xl', which counts distances to earlier tokens: only decoders support it"
        )
    return DistanceBiases(config, rngs=rngs) if config.relative_shared_biases else None


def stacked_layers(make: Callable[..., Layer], count: int, rngs: nnx.Rngs) -> Layer:
    """Returns `count` layers with independent initial parameters, stacked along a leading axis of each array."""

    @nnx.split_rngs(splits=count)
    @nnx.vmap(in_axes=0, out_axes=0)
    def create(rngs: nnx.Rngs) -> Layer:
        return make(rngs=rngs)

    return create(rngs)


_auto_policy = jax.make_user_context('none')


@contextlib.contextmanager
def using_remat(policy: str) -> Iterator[None]:
    """Context manager and decorator; inside it, layers with `remat='auto'` are traced with this policy.

    `policy` is one of `REMAT_POLICIES`; outside, it is 'none'.
    """
    with _auto_policy(policy):
        yield


def with_rematerialisation(apply: Callable, remat: str, *, in_scan: bool = True) -> Callable:
    """Returns a function with the same results, whose backward pass stores or recomputes activations as the option
    `remat` says.

    'none' stores all intermediate values, 'full' recomputes them, and 'dots' stores only matrix products without batch
    dimensions. 'auto' is the policy of `using_remat`. In a scan, the compiler cannot merge the recomputation with the
    forward pass. `in_scan=False` prevents this merge explicitly.
    """
    remat = _auto_policy.value if remat == 'auto' else remat
    if remat == 'none':
        return apply
    policies = {
        'full': jax.checkpoint_policies.nothing_saveable,
        'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    }
    return jax.checkpoint(apply, policy=policies[remat], prevent_cse=not in_scan)
