"""Measures one attention call: this project's backends against attention of JAX and PyTorch on the same device.

A side is an implementation of attention, and a peer is a side of another library. A group is one mechanism at one
length, forward or with gradients. To add a side, add a line to `SIDES`. All sides of a group get the same arrays in
bfloat16: one row, 8 heads of width 64. As in models, this project's sides also get the length of the row, which is
full; the side `jax.nn cudnn` shows the time without it.

The operations of a group are those of its mechanism in tiles of 64 positions (`multiply_adds`): 2 matrix products
forward, 7 with gradients, which compute the scores once more. So the TFLOP/s of the sides of a group are comparable. A
side that computes all pairs of a sparse pattern gets no credit for the extra pairs.

For a sparse pattern, the peers get a mask of all pairs, the same for every head. For LSH, the peers compute causal
attention, which LSH approximates.
"""

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.attend import attend
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.patterns import Pattern
from efficient_attention.attention.registry import multiply_adds
from efficient_attention.attention.request import Lengths
from efficient_attention.attention.softmax.definition import Softmax
from scripts.benchmarks.gpu.cases import Case, Settings, measure_program, speed, time_calls

HEADS, HEAD_WIDTH = 8, 64
MECHANISMS = (
    'causal',
    'causal & window(512)',
    'bigbird(64, 3)',
    'full',
    'sparse_strided(128)',
    'lsh(64, 4, causal=True)',
)
LENGTHS = (16_384, 4_096, 65_536)  # the most telling length first
FIRST_MECHANISMS = MECHANISMS[:3]  # measured first, at the first length with gradients
DRY_MECHANISMS, DRY_LENGTHS = ('bigbird(8, 1)', 'lsh(8, 2, causal=True)'), (32,)
WITH_GRADIENTS = 3.5  # ratio of operations with gradients to operations forward: 7 products / 2

Attention = Callable[..., Array]  # a function of q, k and v, and of a mask if the side needs one
MakeAttention = Callable[[Mechanism, int], tuple[Attention, list[Array]]]  # (mechanism, length) -> function, masks


@dataclasses.dataclass(frozen=True)
class Side:
    """An implementation of attention; `make` raises NotImplementedError for a mechanism that the side does not have.

    A side in PyTorch has no `make`.
    """

    name: str
    make: MakeAttention | None
    is_peer: bool = False


def ours(backend: str, dropout_rate: float = 0.0) -> MakeAttention:
    """Returns a maker of calls of `attend` with this backend; mechanisms without backends accept only 'blocked'."""

    def make(mechanism: Mechanism, length: int) -> tuple[Attention, list[Array]]:
        rng = jax.random.key(0) if mechanism.randomness.always else None
        shares_keys = mechanism.requirements.shared_qk

        def call(q_BLHK: Array, k_BLHK: Array, v_BLHK: Array) -> Array:
            key_BLHK = q_BLHK if shares_keys else k_BLHK
            dropped = {'dropout_rate': dropout_rate, 'dropout_rng': jax.random.key(1)} if dropout_rate else {}
            one = Lengths(jnp.full(q_BLHK.shape[:1], length, jnp.int32))
            segments = {'query_segments': one, 'key_segments': one}
            return attend(q_BLHK, key_BLHK, v_BLHK, mechanism, backend=backend, rng=rng, **segments, **dropped)

        return call, []

    return make


def jax_nn(implementation: Literal['cudnn', 'xla']) -> MakeAttention:
    """Returns a maker of calls of `jax.nn.dot_product_attention` with this implementation."""

    def make(mechanism: Mechanism, length: int) -> tuple[Attention, list[Array]]:
        pattern = mechanism.pattern if isinstance(mechanism, Softmax) else parse_mechanism('causal').pattern
        attention = functools.partial(jax.nn.dot_product_attention, implementation=implementation)
        if not pattern.is_band:
            mask_11LM = mask_of(pattern, length)
            return lambda q, k, v, mask: attention(q, k, v, mask=mask), [mask_11LM]
        window = None if math.isinf(pattern.reach.back) else (int(pattern.reach.back), 0)
        return functools.partial(attention, is_causal=pattern.is_causal, local_window_size=window), []

    return make


def mask_of(pattern: Pattern, length: int) -> Array:
    """Returns the mask of a pattern in head 0 on the device: booleans [1, 1, L, L], True for allowed pairs."""
    pattern = pattern.for_key_count(length).for_head(0, HEADS)

    @jax.jit
    def mask() -> Array:
        places_L = jnp.arange(length)
        return pattern(places_L[:, None], places_L[None])[None, None]

    return mask()


SIDES = (
    Side('cudnn', ours('cudnn')),
    Side('mosaic', ours('mosaic')),
    Side('mosaic, dropout 0.1', ours('mosaic', 0.1)),
    Side('blocked', ours('blocked')),
    Side('jax.nn cudnn', jax_nn('cudnn'), is_peer=True),
    Side('jax.nn xla', jax_nn('xla'), is_peer=True),
    Side('PyTorch', None, is_peer=True),
)


def list_cases(settings: Settings) -> list[Case]:
    """Returns a case for each length, mechanism and side, forward and with gradients."""
    lengths, texts = (DRY_LENGTHS, DRY_MECHANISMS) if settings.is_dry else (LENGTHS, MECHANISMS)
    return [
        Case(
            f'{text} {length} {"forward+gradients" if with_gradients else "forward"}',
            side.name,
            functools.partial(measure_side, side, text, length, with_gradients, settings),
            side.is_peer,
            is_first=length == lengths[0] and with_gradients and text in FIRST_MECHANISMS,
        )
        for length in lengths
        for with_gradients in (True, False)
        for text in texts
        for side in SIDES
    ]


def measure_side(side: Side, text: str, length: int, with_gradients: bool, settings: Settings) -> dict[str, Any]:
    """Measures one side: time, memory and speed of a call."""
    mechanism = parse_mechanism(text)
    flops = 2.0 * multiply_adds(mechanism, length, HEADS, HEAD_WIDTH) * (WITH_GRADIENTS if with_gradients else 1.0)
    if side.make is None:
        call, wait = torch_call(mechanism, (1, length, HEADS, HEAD_WIDTH), with_gradients)
        figures = time_calls(call, wait, settings)
        return figures | speed(figures['milliseconds'], flops)
    attention, masks = side.make(mechanism, length)
    return measure_program(
        with_gradients_of(attention) if with_gradients else attention, [*random_arrays(length), *masks], settings, flops
    )


def random_arrays(length: int) -> list[Array]:
    """Returns random q, k and v in bfloat16, [1, L, H, K]."""
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, (1, length, HEADS, HEAD_WIDTH), jnp.bfloat16) for key in keys]


def with_gradients_of(attention: Attention) -> Callable[..., Any]:
    """Returns a function that computes the gradients of q, k and v, for a weighted sum of the outputs."""

    def gradients(q_BLHK: Array, k_BLHK: Array, v_BLHK: Array, *masks: Array) -> Any:
        def total(*operands: Array) -> Array:
            # The weights give each coordinate of the output another gradient, as in training.
            out_BLHK = attention(*operands, *masks).astype(jnp.float32)
            return (out_BLHK * jnp.cos(jnp.arange(HEAD_WIDTH, dtype=jnp.float32))[None, None, None]).sum()

        return jax.grad(total, argnums=(0, 1, 2))(q_BLHK, k_BLHK, v_BLHK)

    return gradients


def torch_call(mechanism: Mechanism, shape: tuple[int, ...], with_gradients: bool) -> tuple[Callable, Callable]:
    """Returns a call of PyTorch's attention, and a function that waits until the device has computed it.

    Raises:
        NotImplementedError: PyTorch is not installed, or the mechanism is neither full nor causal attention.
    """
    is_causal = mechanism == parse_mechanism('causal') or not isinstance(mechanism, Softmax)
    if not is_causal and mechanism != parse_mechanism('full'):
        raise NotImplementedError('only full and causal attention are measured in PyTorch')
    try:
        peer = importlib.import_module('scripts.benchmarks.peers.gpu_attention')
    except ModuleNotFoundError as error:
        raise NotImplementedError(f'not installed: {error.name}') from None
    return peer.make_call(shape, is_causal=is_causal, with_gradients=with_gradients)
