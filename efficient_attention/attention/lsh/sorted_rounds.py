"""Sorts the positions of each row by segment and bucket for each round of LSH attention,
and cuts them into chunks of equal size.

Axes of this folder's files, besides the package's: n chunks of a round, of S slots each, and s = n S slots; g chunks
that a step computes; c chunks that a step reads, those g and the one before them; m keys that a chunk reads, its own S
and the S keys of the chunk before.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from efficient_attention.attention.lsh.hashing import draw_rotations, hash_buckets
from efficient_attention.attention.lsh.sorting import invert_permutation, segment_ranks, stable_order, take_along_rows
from efficient_attention.attention.request import Request

NO_RUN = -1  # the run number of a sorted entry without a token; tokens of one run may attend to one another


@dataclasses.dataclass(frozen=True)
class LSHLayout:
    """The static values of a call of LSH attention: the options of `LSH`, and the sizes that follow from the length.

    Args:
        length: L, positions of a row.
        size: slots of a chunk, S.
        rounds: number of hash rounds, T.
        buckets: requested number of buckets per round; hashing may lower it to a product of two numbers.
        causal: as in `LSH`, like `within_buckets`, `deduplicate` and `sequential`.
        dropout_rate: probability in [0, 1) of dropping a weight.
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
    def chunk_count(self) -> int:
        """The number n of chunks in a hash round."""
        return -(-self.length // self.size)

    @property
    def previous_chunks(self) -> int:
        """How many chunks before its own chunk a query reads: 1, or 0 if there is only one chunk."""
        return int(self.chunk_count > 1)


class HashRounds(NamedTuple):
    """The sorted order of positions in one or more hash rounds of LSH attention.

    Slots after the last position repeat this position and belong to no run.
    """

    numbers_T: Array
    order_BHTs: Array  # the position at each index of the sorted order
    slots_BHTL: Array  # the index of each position in the sorted order
    runs_BHTs: Array | None  # only tokens with equal numbers may attend to one another; None: all tokens may


def make_rounds(request: Request, layout: LSHLayout) -> tuple[HashRounds, Int[Array, 'B H T L']]:
    """Returns the sorted order of positions in all hash rounds, and the buckets;
    samples the rotations from `request.rng`.
    """
    assert request.rng is not None
    _, _, heads, width = request.query.shape
    segments_BL = None if request.segments is None else request.segments.query
    rotations_HKTb = draw_rotations(request.rng, layout.buckets, layout.rounds, heads, width)

    def one_round(number: Int[Array, ''], rotations_HKb: list[Array]) -> tuple[HashRounds, Array]:
        buckets_BHTL = hash_buckets(request.query, [rotation_HKb[:, :, None] for rotation_HKb in rotations_HKb])
        return sort_round(number[None], buckets_BHTL, segments_BL, layout), buckets_BHTL

    # Rounds are hashed one after another, so that only one round's projections are in memory.
    numbers_T = jnp.arange(layout.rounds, dtype=jnp.int32)
    rotations_THKb = [jnp.moveaxis(rotation_HKTb, 2, 0) for rotation_HKTb in rotations_HKTb]
    by_round = jax.lax.map(lambda numbered: one_round(*numbered), (numbers_T, rotations_THKb))
    return jax.tree.map(lambda x: x[:, 0] if x.ndim == 2 else jnp.moveaxis(x[:, :, :, 0], 0, 2), by_round)


def sort_round(numbers_T: Array, buckets_BHTL: Array, segments_BL: Array | None, layout: LSHLayout) -> HashRounds:
    """Returns the positions of each row in one hash round, sorted by (segment, bucket, position), with padding last."""
    order_BHTL, runs_BHTL = stable_order(buckets_BHTL, layout.buckets), None
    if segments_BL is not None:
        ranks_BHTL = jnp.broadcast_to(segment_ranks(segments_BL)[:, None, None], order_BHTL.shape)
        order_BHTL = take_along_rows(
            order_BHTL, stable_order(take_along_rows(ranks_BHTL, order_BHTL), layout.length + 1)
        )
        runs_BHTL = take_along_rows(ranks_BHTL, order_BHTL)
    if layout.within_buckets:
        runs_BHTL = number_bucket_runs(take_along_rows(buckets_BHTL, order_BHTL), runs_BHTL, layout)
    elif runs_BHTL is not None:
        runs_BHTL = jnp.where(runs_BHTL == layout.length, NO_RUN, runs_BHTL)
    filling = [(0, 0)] * 3 + [(0, layout.size * layout.chunk_count - layout.length)]
    if runs_BHTL is None and filling[-1][1]:
        runs_BHTL = jnp.zeros_like(order_BHTL)
    runs_BHTs = None if runs_BHTL is None else jnp.pad(runs_BHTL, filling, constant_values=NO_RUN)
    return HashRounds(numbers_T, jnp.pad(order_BHTL, filling, mode='edge'), invert_permutation(order_BHTL), runs_BHTs)


def number_bucket_runs(buckets_BHTL: Array, ranks_BHTL: Array | None, layout: LSHLayout) -> Int[Array, 'B H T L']:
    """Numbers the sorted tokens so that the number rises wherever the bucket or the segment changes. Padding, whose
    segment rank is L, gets NO_RUN.
    """
    is_new_BHTL = jnp.diff(buckets_BHTL, axis=-1, prepend=buckets_BHTL[..., :1]) != 0
    if ranks_BHTL is not None:
        is_new_BHTL |= jnp.diff(ranks_BHTL, axis=-1, prepend=ranks_BHTL[..., :1]) != 0
    runs_BHTL = jnp.cumsum(is_new_BHTL, axis=-1, dtype=jnp.int32)
    return runs_BHTL if ranks_BHTL is None else jnp.where(ranks_BHTL == layout.length, NO_RUN, runs_BHTL)
