"""The rounds of LSH attention: the positions of each row sorted by segment and bucket, in chunks of one size."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from efficient_attention.attention.lsh.hashing import draw_rotations, hash_buckets
from efficient_attention.attention.lsh.sorting import invert, segment_ranks, stable_order, take
from efficient_attention.attention.request import Request

NO_RUN = -1


@dataclasses.dataclass(frozen=True)
class Layout:
    """What is static about a call: the options of its `LSH` (see there) and the sizes that follow from the length.

    Args:
        length: L, positions of a row.
        size: slots of a chunk, S.
        rounds: T.
        buckets: asked for in a round; hashing may lower it to a product of two numbers.
        causal: as in `LSH`, like the three after it.
        dropout_rate: probability in [0, 1) to drop a weight.
    """

    length: int
    size: int
    rounds: int
    buckets: int
    causal: bool
    within_buckets: bool
    deduplicate: bool
    sequential: bool
    dropout_rate: float = 0.0

    @property
    def chunks(self) -> int:
        """Chunks of a round, n."""
        return -(-self.length // self.size)

    @property
    def before(self) -> int:
        """Chunks before its own that a query reads: 1, or 0 where there is one chunk alone."""
        return int(self.chunks > 1)


class Rounds(NamedTuple):
    """The sorted order of some rounds. Slots behind the last position hold it once more and belong to no run."""

    numbers_T: Array
    order_BHTN: Array  # the position in each slot
    slots_BHTL: Array  # the slot of each position
    runs_BHTN: Array | None  # equal where a pair is allowed by segment (and bucket), NO_RUN where there is no token


def make_rounds(request: Request, layout: Layout) -> tuple[Rounds, Int[Array, 'B H T L']]:
    """The order of all rounds, and the buckets; rotations are drawn from `request.rng`."""
    assert request.rng is not None
    _, _, heads, width = request.query.shape
    segments_BL = None if request.segments is None else request.segments.query
    rotations = draw_rotations(request.rng, layout.buckets, layout.rounds, heads, width)

    def one_round(number: Array, own_rotations: list[Array]) -> tuple[Rounds, Array]:
        buckets_BHTL = hash_buckets(request.query, [rotation[:, :, None] for rotation in own_rotations])
        return sort_round(number[None], buckets_BHTL, segments_BL, layout), buckets_BHTL

    # One round after another, so that the projections of one alone exist.
    numbers = jnp.arange(layout.rounds, dtype=jnp.int32)
    by_round = jax.lax.map(lambda part: one_round(*part), (numbers, [jnp.moveaxis(x, 2, 0) for x in rotations]))
    return jax.tree.map(lambda x: x[:, 0] if x.ndim == 2 else jnp.moveaxis(x[:, :, :, 0], 0, 2), by_round)


def sort_round(numbers_T: Array, buckets_BHTL: Array, segments_BL: Array | None, layout: Layout) -> Rounds:
    """The positions of each row by (segment, bucket, position), padding last."""
    order, runs = stable_order(buckets_BHTL, layout.buckets), None
    if segments_BL is not None:
        ranks_BHTL = jnp.broadcast_to(segment_ranks(segments_BL)[:, None, None], order.shape)
        order = take(order, stable_order(take(ranks_BHTL, order), layout.length + 1))
        runs = take(ranks_BHTL, order)
    if layout.within_buckets:
        buckets = take(buckets_BHTL, order)
        is_new = jnp.diff(buckets, axis=-1, prepend=buckets[..., :1]) != 0
        if runs is not None:
            is_new |= jnp.diff(runs, axis=-1, prepend=runs[..., :1]) != 0
        bucket_runs = jnp.cumsum(is_new, axis=-1, dtype=jnp.int32)
        runs = bucket_runs if runs is None else jnp.where(runs == layout.length, NO_RUN, bucket_runs)
    elif runs is not None:
        runs = jnp.where(runs == layout.length, NO_RUN, runs)
    filling = [(0, 0)] * 3 + [(0, layout.size * layout.chunks - layout.length)]
    if runs is None and filling[-1][1]:
        runs = jnp.zeros_like(order)
    runs = None if runs is None else jnp.pad(runs, filling, constant_values=NO_RUN)
    return Rounds(numbers_T, jnp.pad(order, filling, mode='edge'), invert(order), runs)
