"""Reversible layers with two residual streams: the backward pass recomputes each layer's inputs from its outputs, so
activations are not stored.

    forward     y1 = x1 + f(x2)     y2 = x2 + g(y1)
    inverse     x2 = y2 - g(y1)     x1 = y1 - f(x2)

f and g are the branches of a layer's sub-layers. A layer may have any number of branches, each mapping (x1, x2) to (x2,
x1 + f(x2)). From the last layer to the first, the backward pass recovers a branch's inputs from its outputs and
differentiates it there. Between forward and backward pass, only the last layer's two outputs are stored, at any depth.
PRNG keys of branches depend only on the context and the layer's number, so both passes compute the same functions.

Source: Gomez et al. 2017, arXiv 1707.04585, section 3; Kitaev et al. 2020, arXiv 2001.04451, section 3.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from efficient_attention.modules.layer import Streams, initial_streams, merge_streams, residual_sum

# A branch f of a reversible layer; its result f(x) may have any float dtype.
# Arguments of a branch: (parameters of the layer, parameters of all layers), context, layer number, x [B, L, D].
Branch = Callable[[Any, Any, Array, Array], Array]


@dataclasses.dataclass(frozen=True)
class ReversibleStackSpec:
    """The static description of a reversible stack: its branches, its number of layers, and the unrolling of its scan.

    Args:
        branches: the branches of a layer, for each turn; layer i uses turn i modulo the number of turns.
        layers: N, a multiple of the number of turns.
        unroll: number of scan steps compiled in sequence; each step runs one layer per turn.
    """

    branches: tuple[tuple[Branch, ...], ...]
    layers: int
    unroll: int = 1

    def layer_numbers(self) -> Array:
        """Returns the numbers of all layers as an array [scan steps, layers per step], int32."""
        return jnp.arange(self.layers).reshape(-1, len(self.branches))


def run_reversible_stack(plan: ReversibleStackSpec, separate: Any, shared: Any, context: Any, x_BLD: Array) -> Array:
    """Returns the output of a reversible stack: the mean of the last layer's two streams, which both start as the
    input.

    The streams are float32, whatever the dtype of `x_BLD` and of the branches. Each layer's inversion adds one rounding
    error of a stream; float32 keeps it small, and two streams cost the same at any depth.

    Args:
        plan: branches and number of layers.
        separate: parameters per layer, leaves [steps, turns, ...]; None if all layers share them.
        shared: inputs of all layers that get gradients, such as shared parameters or a computed bias; may be None.
        context: arrays and PRNG keys that all layers read, without gradients.
        x_BLD: the input.
    """
    return merge_streams(
        run_reversible_streams(plan, separate, shared, context, initial_streams(x_BLD, is_reversible=True)), x_BLD.dtype
    )


def reversible_forward(
    plan: ReversibleStackSpec, separate: Any, shared: Any, context: Any, streams: Streams
) -> Streams:
    """Returns the two streams after the last layer of a reversible stack.

    Differentiating this function directly would store every layer's activations.
    """

    def step(streams: Streams, layers: tuple[Any, Array]) -> tuple[Streams, None]:
        separate, numbers = layers
        for turn, branches in enumerate(plan.branches):
            arguments = (jax.tree.map(lambda leaf, turn=turn: leaf[turn], separate), shared), context, numbers[turn]
            for branch in branches:
                streams = (*streams[1:], residual_sum(streams, branch(*arguments, streams[-1])))
        return streams, None

    return jax.lax.scan(step, streams, (separate, plan.layer_numbers()), unroll=plan.unroll)[0]


def reversible_backward(
    plan: ReversibleStackSpec, separate: Any, shared: Any, context: Any, streams: Streams, cotangents: Streams
) -> tuple[Streams, Streams, tuple[Any, Any]]:
    """Returns the results of the backward pass of a reversible stack: recomputed input streams, their cotangents, and
    the gradients of the parameters.

    The function receives the last layer's output streams and their cotangents.
    """

    def step(carry: Any, layers: tuple[Any, Array]) -> tuple[Any, Any]:
        streams, cotangents, total = carry
        separate, numbers = layers
        gradients: list[Any] = []
        for turn in reversed(range(len(plan.branches))):
            arguments = (jax.tree.map(lambda leaf, turn=turn: leaf[turn], separate), shared), context, numbers[turn]
            streams, cotangents, gradient = invert_layer(plan.branches[turn], arguments, streams, cotangents)
            gradients.insert(0, gradient[0])
            total = jax.tree.map(jnp.add, total, gradient[1])
        return (streams, cotangents, total), jax.tree.map(lambda *leaves: jnp.stack(leaves), *gradients)

    start = streams, cotangents, jax.tree.map(jnp.zeros_like, shared)
    (streams, cotangents, total), stacked = jax.lax.scan(
        step, start, (separate, plan.layer_numbers()), reverse=True, unroll=plan.unroll
    )
    return streams, cotangents, (stacked, total)


def invert_layer(
    branches: tuple[Branch, ...], arguments: tuple[Any, Any, Array], streams: Streams, cotangents: Streams
) -> tuple[Streams, Streams, Any]:
    """Returns the results of the backward pass of one reversible layer: recomputed input streams, their cotangents, and
    the gradient of the parameters.
    """
    parameters, context, number = arguments
    (first, second), (d_first, d_second) = streams, cotangents
    gradients: list[Any] = []
    for branch in reversed(branches):

        def added_to(parameters: Any, x_BLD: Array, branch: Branch = branch) -> Array:
            return branch(parameters, context, number, x_BLD).astype(x_BLD.dtype)

        added, pull = jax.vjp(added_to, parameters, first)
        gradient, d_input = pull(d_second)
        gradients.insert(0, gradient)
        first, second = second - added, first
        d_first, d_second = d_second, d_first + d_input
    return (first, second), (d_first, d_second), functools.reduce(add_trees, gradients)


def add_trees(left: Any, right: Any) -> Any:
    """Returns the sum of two pytrees, leaf by leaf."""
    return jax.tree.map(jnp.add, left, right)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def run_reversible_streams(
    plan: ReversibleStackSpec, separate: Any, shared: Any, context: Any, streams: Streams
) -> Streams:
    """Returns the two streams after the last layer; the custom backward pass recomputes activations instead of storing
    them.
    """
    return reversible_forward(plan, separate, shared, context, streams)


def _run_forward(
    plan: ReversibleStackSpec, separate: Any, shared: Any, context: Any, streams: Streams
) -> tuple[Streams, Any]:
    out = reversible_forward(plan, separate, shared, context, streams)
    return out, (separate, shared, context, out)


def _run_backward(plan: ReversibleStackSpec, residuals: Any, cotangents: Streams) -> tuple[Any, Any, None, Streams]:
    separate, shared, context, streams = residuals
    _, cotangents, (separate_gradient, shared_gradient) = reversible_backward(
        plan, separate, shared, context, streams, cotangents
    )
    return separate_gradient, shared_gradient, None, cotangents


run_reversible_streams.defvjp(_run_forward, _run_backward)


def inverse_error(
    plan: ReversibleStackSpec, separate: Any, shared: Any, context: Any, x_BLD: Array, *, dtype: DTypeLike = jnp.float32
) -> Array:
    """Returns the relative error of the inversion: the largest difference of the recomputed input from the true input,
    over the largest |x|.

    `dtype` is the dtype of the streams; training uses float32.
    """
    x_BLD = x_BLD.astype(dtype)
    streams = reversible_forward(plan, separate, shared, context, (x_BLD, x_BLD))
    recovered, _, _ = reversible_backward(
        plan, separate, shared, context, streams, jax.tree.map(jnp.zeros_like, streams)
    )
    errors = [jnp.abs(stream.astype(jnp.float32) - x_BLD.astype(jnp.float32)).max() for stream in recovered]
    return jnp.maximum(*errors) / jnp.abs(x_BLD).max().astype(jnp.float32)
