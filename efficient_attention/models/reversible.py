"""Layers of two streams whose inputs follow from their outputs, so that the backward pass needs no stored activation.

    forward     y1 = x1 + f(x2)     y2 = x2 + g(y1)
    inverse     x2 = y2 - g(y1)     x1 = y1 - f(x2)

The backward pass goes down the layers: it recovers a layer's inputs from its outputs and differentiates f and g there.
Between forward and backward only the last layer's two outputs are kept, whatever the depth. f and g draw from keys
that follow from the context and the layer's number, so they are the same functions both times.

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

# ((a layer's own parameters, those that all layers read), context, the layer's number, x [B, L, D]) -> f(x), of any
# float dtype
Branch = Callable[[Any, Any, Array, Array], Array]
Streams = tuple[Array, Array]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What of a reversible stack is no array.

    branches: f and g of each turn; layer i takes pair i modulo their number.
    layers: N, a multiple of the number of turns.
    unroll: steps of the scan (each as many layers as there are turns) compiled in a row.
    """

    branches: tuple[tuple[Branch, Branch], ...]
    layers: int
    unroll: int = 1

    def numbers(self) -> Array:
        """The layers' numbers, int32 [steps, turns]."""
        return jnp.arange(self.layers).reshape(-1, len(self.branches))


def reversible(plan: Plan, own: Any, shared: Any, context: Any, x_BLD: Array) -> Array:
    """The mean of the last layer's two streams, which both start as `x`.

    The streams are float32 whatever the dtype of `x` and of the branches: an inversion adds one rounding of a stream
    for each layer, and two streams in float32 cost the same at any depth.

    Args:
        plan: branches and depth.
        own: parameters of each layer, leaves [steps, turns, ...]; None where layers have none of their own.
        shared: what all layers read and get the gradient of: parameters, a bias computed from some; may be None.
        context: arrays and keys that all layers read; no gradient flows into them.
        x_BLD: the input.
    """
    x32_BLD = x_BLD.astype(jnp.float32)
    first_BLD, second_BLD = run(plan, own, shared, context, (x32_BLD, x32_BLD))
    return (0.5 * (first_BLD + second_BLD)).astype(x_BLD.dtype)


def forward(plan: Plan, own: Any, shared: Any, context: Any, streams: Streams) -> Streams:
    """The last layer's streams; its own derivative would store every layer's activations."""

    def step(streams: Streams, part: tuple[Any, Array]) -> tuple[Streams, None]:
        own, numbers = part
        for turn, (f, g) in enumerate(plan.branches):
            arguments = (own_of(own, turn), shared), context, numbers[turn]
            first, second = streams
            first = first + f(*arguments, second).astype(first.dtype)
            streams = first, second + g(*arguments, first).astype(second.dtype)
        return streams, None

    return jax.lax.scan(step, streams, (own, plan.numbers()), unroll=plan.unroll)[0]


def backward(
    plan: Plan, own: Any, shared: Any, context: Any, streams: Streams, cotangents: Streams
) -> tuple[Streams, Streams, tuple[Any, Any]]:
    """The first layer's input streams and their cotangents from the last one's outputs; gradients of own and shared."""

    def step(carry: Any, part: tuple[Any, Array]) -> tuple[Any, Any]:
        streams, cotangents, total = carry
        own, numbers = part
        gradients: list[Any] = []
        for turn in reversed(range(len(plan.branches))):
            arguments = (own_of(own, turn), shared), context, numbers[turn]
            streams, cotangents, gradient = undo(plan.branches[turn], arguments, streams, cotangents)
            gradients.insert(0, gradient[0])
            total = jax.tree.map(jnp.add, total, gradient[1])
        return (streams, cotangents, total), jax.tree.map(lambda *leaves: jnp.stack(leaves), *gradients)

    start = streams, cotangents, jax.tree.map(jnp.zeros_like, shared)
    parts = own, plan.numbers()
    (streams, cotangents, total), stacked = jax.lax.scan(step, start, parts, reverse=True, unroll=plan.unroll)
    return streams, cotangents, (stacked, total)


def undo(
    branches: tuple[Branch, Branch], arguments: tuple[Any, Any, Array], streams: Streams, cotangents: Streams
) -> tuple[Streams, Streams, Any]:
    """One layer's input streams, their cotangents, and the gradient of its parameters."""
    parameters, context, number = arguments

    def at(branch: Branch, x: Array) -> tuple[Array, Callable]:
        return jax.vjp(lambda own, x: branch(own, context, number, x).astype(x.dtype), parameters, x)

    (f, g), (first, second), (d_first, d_second) = branches, streams, cotangents
    added, pull = at(g, first)
    second = second - added
    g_gradient, d_input = pull(d_second)
    d_first = d_first + d_input
    added, pull = at(f, second)
    f_gradient, d_input = pull(d_first)
    gradient = jax.tree.map(jnp.add, f_gradient, g_gradient)
    return (first - added, second), (d_first, d_second + d_input), gradient


def own_of(own: Any, turn: int) -> Any:
    """The parameters of one turn's own, from those of a step with leaves [turns, ...]."""
    return jax.tree.map(lambda leaf: leaf[turn], own)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def run(plan: Plan, own: Any, shared: Any, context: Any, streams: Streams) -> Streams:
    """The last layer's streams, differentiable without stored activations."""
    return forward(plan, own, shared, context, streams)


def _run_forward(plan: Plan, own: Any, shared: Any, context: Any, streams: Streams) -> tuple[Streams, Any]:
    out = forward(plan, own, shared, context, streams)
    return out, (own, shared, context, out)


def _run_backward(plan: Plan, residuals: Any, cotangents: Streams) -> tuple[Any, Any, None, Streams]:
    own, shared, context, streams = residuals
    _, cotangents, (own_gradient, shared_gradient) = backward(plan, own, shared, context, streams, cotangents)
    return own_gradient, shared_gradient, None, cotangents


run.defvjp(_run_forward, _run_backward)


def inverse_error(
    plan: Plan, own: Any, shared: Any, context: Any, x_BLD: Array, *, dtype: DTypeLike = jnp.float32
) -> Array:
    """How far the input that the backward pass recovers lies from `x`: the largest difference over the largest |x|.

    dtype: of the streams; training has float32.
    """
    x_BLD = x_BLD.astype(dtype)
    streams = forward(plan, own, shared, context, (x_BLD, x_BLD))
    recovered, _, _ = backward(plan, own, shared, context, streams, jax.tree.map(jnp.zeros_like, streams))
    errors = [jnp.abs(stream.astype(jnp.float32) - x_BLD.astype(jnp.float32)).max() for stream in recovered]
    return jnp.maximum(*errors) / jnp.abs(x_BLD).max().astype(jnp.float32)
