"""LSH attention defined: hashing, the sorted order of a round, who reads whom, and the weights as a dense matrix.

Source: Kitaev et al. 2020, arXiv 2001.04451 (Reformer), section 2, and the released code where it differs.

Queries and keys are one array (shared QK): the key is the unit vector k = q / |q|, the logits are q . k, without
another factor. (`Softmax` on keys sqrt(K) q / |q| has the same logits.) `request.key` is therefore never read. A token
reads itself only where it may read nothing else: the logit of a position with itself is -1e5.

In each of T rounds the positions of a row are sorted by (segment, bucket, position) and cut into n chunks of S =
`bucket_size`; the buckets are those of `hash_buckets`. A query reads its own chunk and the one before it; the first
chunk's predecessor is the last chunk of the same round. Masks are then applied pair by pair, so that nothing outside
the segment, and no padding, is ever read. Sorting by segment first gives packed segments chunks of their own: sorted by
bucket alone, most of a chunk would be keys that its queries may not read. Padding sorts behind everything else.

The weights are those of one softmax over the keys of all rounds together, in which a pair that two rounds found counts
twice unless `deduplicate` is set.

Axes here: B rows, H heads, T rounds, n chunks of S slots, K head width; N = n S slots.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from efficient_attention.attention.checks import same_values
from efficient_attention.attention.mechanism import Mechanism, lack, of_kind, refuse, require, require_at_least
from efficient_attention.attention.request import Request
from efficient_attention.attention.weights import masked_softmax, same_segment, up_to_query
from efficient_attention.errors import InputError

SELF_LOGIT = -1e5  # of a position with itself; trax's value
SMALLEST_SQUARE = 1e-12  # added to |q|^2, so that a query of zeros has a key of zeros
MOST_BUCKETS = 128  # beyond it one rotation would cost more than the attention, so two are combined
HASHED_AT_ONCE = 4096  # positions
NO_RUN = -1


@dataclasses.dataclass(frozen=True)
class LSH(Mechanism):
    """Softmax attention over the pairs that fall into one chunk of a sort by angular hash, in one of several rounds.

    The key is the unit vector of the query (shared QK), so `attend` takes query and key as the same array. Defaults
    follow the paper's released code rather than the paper: a query also reads keys of neighbouring buckets inside its
    chunks, and a pair found in two rounds counts twice. Source: Kitaev et al. 2020, arXiv 2001.04451, section 2.

    Args:
        bucket_size: positions in a chunk of the sorted order; a query reads its own and the previous chunk.
        rounds: independent hashes, T.
        buckets: hash values a round, an even number; 0 = 2 x max(1, L // bucket_size). Above 128 two hashes are
            combined, into a product of two even numbers of at most this.
        causal: k <= q.
        within_buckets: read keys of the query's own bucket alone (the paper's definition).
        deduplicate: count a pair once however many rounds found it (the paper's N term).
        sequential: compute the rounds one after another, so that temporary memory hardly grows with T.
    """

    name = 'lsh'

    bucket_size: int = 64
    rounds: int = 4
    buckets: int = 0
    causal: bool = False
    within_buckets: bool = False
    deduplicate: bool = False
    sequential: bool = False

    def __post_init__(self) -> None:
        for name in ('bucket_size', 'rounds'):
            require_at_least(1, f'lsh {name}', getattr(self, name))
        require_at_least(0, 'lsh buckets', self.buckets)
        require(self.buckets % 2 == 0, 'lsh buckets', self.buckets, 'even, or 0 to choose')

    @property
    def is_causal(self) -> bool:
        """As its argument says."""
        return self.causal

    @property
    def has_causal_option(self) -> bool:
        """True: `causal`."""
        return True

    @property
    def needs_rng(self) -> bool:
        """The hashes are random rotations."""
        return True

    @property
    def normalises_keys(self) -> bool:
        """Keys are unit queries."""
        return True

    @property
    def reads_length(self) -> bool:
        """Chunks and the number of buckets follow from it."""
        return True

    def check_decoding(self) -> None:
        """Never: see cache.py."""
        raise InputError(
            'lsh attention cannot go on token by token: which keys a query meets depends on the tokens after it'
        )


@dataclasses.dataclass(frozen=True)
class Layout:
    """What is static about a call."""

    mechanism: LSH
    length: int
    dropout_rate: float

    @property
    def size(self) -> int:
        """Slots of a chunk, S."""
        return min(self.mechanism.bucket_size, self.length)

    @property
    def chunks(self) -> int:
        """Chunks of a round, n."""
        return -(-self.length // self.size)

    @property
    def buckets(self) -> int:
        """Buckets asked for, which hashing may lower to a product of two numbers."""
        return self.mechanism.buckets or 2 * max(1, self.length // self.mechanism.bucket_size)

    @property
    def before(self) -> int:
        """Chunks before its own that a query reads: none where there is one chunk alone."""
        return int(self.chunks > 1)


def make_layout(request: Request) -> Layout:
    """The static part of a request that LSH attention serves.

    Raises:
        NotImplementedError: another mechanism, a bias, key heads or lengths or positions unlike the queries'.
    """
    mechanism = of_kind(LSH, request.mechanism)
    queries, keys, heads, groups = (x.shape[axis] for axis in (1, 2) for x in (request.query, request.key))
    lacks = {
        'bias': request.bias is not None,
        f'cross attention: {queries} queries and {keys} keys': queries != keys,
        f'grouped heads: {heads} query and {groups} key heads': heads != groups,
    }
    refuse('lsh', lacks)
    for name, sides in (('positions', request.positions), ('segments', request.segments)):
        if sides is not None and not same_values(*sides):
            raise lack(
                'lsh', f'{name} of keys that are not those of queries; pass one array as query_{name} and key_{name}'
            )
    return Layout(mechanism, queries, request.dropout.rate if request.dropout else 0.0)


class Rounds(NamedTuple):
    """The sorted order of some rounds. Slots behind the last position hold it once more and belong to no run."""

    numbers_T: Array
    order_BHTN: Array  # the position in each slot
    slots_BHTL: Array  # the slot of each position
    runs_BHTN: Array | None  # equal where a pair is allowed by segment (and bucket), NO_RUN where there is no token


# Hashing and sorting


def bucket_factors(buckets: int) -> tuple[int, ...]:
    """The even numbers of buckets whose product replaces `buckets`: itself up to 128, else two near its square root.

    The product is at most `buckets` and may lie below it: 130 gives 16 x 8.
    """
    if buckets <= MOST_BUCKETS:
        return (buckets,)
    first = 2 ** math.ceil(math.log2(math.sqrt(buckets)))
    return first, 2 * (buckets // (2 * first))


def draw_rotations(rng: Array, buckets: int, rounds: int, heads: int, width: int) -> list[Float[Array, 'H K T _']]:
    """Gaussian directions for each factor of the number of buckets, half as many as buckets; all rows share them."""
    factors = bucket_factors(buckets)
    return [
        jax.random.normal(key, (heads, width, rounds, factor // 2), jnp.float32)
        for key, factor in zip(jax.random.split(rng, len(factors)), factors, strict=True)
    ]


def hash_buckets(query: Float[Array, 'B L H K'], rotations: list[Float[Array, 'H K T _']]) -> Int[Array, 'B H T L']:
    """The bucket of each query in each round: argmax [x R; -x R], in mixed radix where there are several R.

    Vectors at a small angle share a bucket more often than others (Andoni et al. 2015, arXiv 1509.02897). The number of
    directions grows with the length, so the projections of all positions at once would grow faster than it.
    """
    length = query.shape[1]
    if length <= HASHED_AT_ONCE:
        return hash_block(query, rotations)
    padded = jnp.pad(query, ((0, 0), (0, -length % HASHED_AT_ONCE), (0, 0), (0, 0)))
    blocks = padded.reshape(query.shape[0], -1, HASHED_AT_ONCE, *query.shape[2:]).swapaxes(0, 1)
    numbers = jax.lax.map(lambda block: hash_block(block, rotations), blocks)  # [n, B, H, T, block]
    numbers = jnp.moveaxis(numbers, 0, 3)
    return numbers.reshape(*numbers.shape[:3], -1)[..., :length]


def hash_block(query: Float[Array, 'B L H K'], rotations: list[Float[Array, 'H K T _']]) -> Int[Array, 'B H T L']:
    """`hash_buckets` of all positions at once."""
    numbers, base = None, 1
    x_BLHK = jax.lax.stop_gradient(query).astype(jnp.float32)
    for rotation in rotations:
        projected = jnp.einsum('BLHK,HKTb->BHTbL', x_BLHK, rotation, precision=jax.lax.Precision.HIGHEST)
        digits = strongest_direction(projected)
        numbers = digits if numbers is None else numbers + jnp.int32(base) * digits
        base *= 2 * rotation.shape[-1]
    assert numbers is not None
    return numbers


def strongest_direction(projected_BHTbL: Array) -> Array:
    """argmax over [x, -x] along axis b; two plain reductions, which a CPU vectorises as it does not argmax."""
    count = projected_BHTbL.shape[-2]
    largest = jnp.abs(projected_BHTbL).max(axis=-2, keepdims=True)
    numbers = jax.lax.broadcasted_iota(jnp.int32, projected_BHTbL.shape, projected_BHTbL.ndim - 2)
    mirrored = jnp.where(-projected_BHTbL == largest, numbers + count, 2 * count - 1)  # no NaN leaves the range
    return jnp.where(projected_BHTbL == largest, numbers, mirrored).min(axis=-2)


def make_rounds(request: Request, layout: Layout) -> tuple[Rounds, Int[Array, 'B H T L']]:
    """The order of all rounds, and the buckets; rotations are drawn from `request.rng`."""
    assert request.rng is not None
    _, _, heads, width = request.query.shape
    segments_BL = None if request.segments is None else request.segments.query
    rotations = draw_rotations(request.rng, layout.buckets, layout.mechanism.rounds, heads, width)

    def one_round(number: Array, own_rotations: list[Array]) -> tuple[Rounds, Array]:
        buckets_BHTL = hash_buckets(request.query, [rotation[:, :, None] for rotation in own_rotations])
        return sort_round(number[None], buckets_BHTL, segments_BL, layout), buckets_BHTL

    # One round after another, so that the projections of one alone exist.
    numbers = jnp.arange(layout.mechanism.rounds, dtype=jnp.int32)
    by_round = jax.lax.map(lambda part: one_round(*part), (numbers, [jnp.moveaxis(x, 2, 0) for x in rotations]))
    return jax.tree.map(lambda x: x[:, 0] if x.ndim == 2 else jnp.moveaxis(x[:, :, :, 0], 0, 2), by_round)


def sort_round(numbers_T: Array, buckets_BHTL: Array, segments_BL: Array | None, layout: Layout) -> Rounds:
    """The positions of each row by (segment, bucket, position), padding last."""
    order, runs = stable_order(buckets_BHTL, layout.buckets), None
    if segments_BL is not None:
        ranks_BHTL = jnp.broadcast_to(segment_ranks(segments_BL)[:, None, None], order.shape)
        order = take(order, stable_order(take(ranks_BHTL, order), layout.length + 1))
        runs = take(ranks_BHTL, order)
    if layout.mechanism.within_buckets:
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


def stable_order(numbers: Array, bound: int) -> Array:
    """The permutation that sorts whole numbers in [0, bound) along the last axis, equal ones by place.

    Sorting numbers that carry their place is several times faster than sorting pairs, and takes half the memory; where
    both do not fit into 32 bits, digit by digit.
    """
    length = numbers.shape[-1]
    base, weight = 2**32 // length, 1
    places = jax.lax.broadcasted_iota(jnp.uint32, numbers.shape, numbers.ndim - 1)
    order = places.astype(jnp.int32)
    while weight < bound or weight == 1:
        digits = take(numbers, order) if weight > 1 else numbers
        digits = (digits // jnp.int32(weight)) % jnp.int32(min(base, 2**31 - 1))
        carried = jnp.sort(digits.astype(jnp.uint32) * jnp.uint32(length) + places, axis=-1)
        by_digit = (carried % jnp.uint32(length)).astype(jnp.int32)
        order = take(order, by_digit) if weight > 1 else by_digit
        weight *= base
    return order


def segment_ranks(segments_BL: Array) -> Array:
    """0, 1, ... in the order of a row's segment numbers, and L for padding."""
    length = segments_BL.shape[1]
    order = jnp.argsort(segments_BL, axis=-1, stable=True).astype(jnp.int32)
    ordered = take(segments_BL, order)
    ranks = jnp.cumsum(jnp.diff(ordered, axis=-1, prepend=ordered[:, :1]) != 0, axis=-1, dtype=jnp.int32)
    return jnp.where(segments_BL == 0, length, take(ranks, invert(order)))


def invert(order: Array) -> Array:
    """The inverse of permutations along the last axis."""

    def invert_one(order_L: Array) -> Array:
        places = jnp.arange(order_L.shape[0], dtype=jnp.int32)
        return jnp.zeros_like(order_L).at[order_L].set(places, unique_indices=True, mode='promise_in_bounds')

    return over_rows(invert_one, order.ndim - 1)(order)


def take(x: Array, index: Array) -> Array:
    """`x` [..., L, *rest] at `index` [..., m]: [..., m, *rest], for equal leading axes."""
    return over_rows(lambda x, index: x.at[index].get(mode='promise_in_bounds'), index.ndim - 1)(x, index)


def over_rows(fn: Any, axes: int) -> Any:
    """`fn` mapped over that many leading axes."""
    for _ in range(axes):
        fn = jax.vmap(fn)
    return fn


def unit_keys(q: Float[Array, '*batch K']) -> Float[Array, '*batch K']:
    """q / |q| in float32: the keys of shared-QK attention."""
    return q.astype(jnp.float32) * key_scale(q)[..., None]


def key_scale(q: Float[Array, '*batch K']) -> Float[Array, '*batch']:
    """1 / |q| in float32, finite for zeros."""
    return jax.lax.rsqrt(jnp.square(q.astype(jnp.float32)).sum(axis=-1) + SMALLEST_SQUARE)


def weights(request: Request) -> tuple[Float[Array, 'B H L L'], Float[Array, 'B H L']]:
    """The dense definition: weights of the union over rounds before dropout, rows summing to 1 or 0; log-sum-exp."""
    layout = make_layout(request)
    q_BHLK = request.query.astype(jnp.float32).swapaxes(1, 2)
    logits = jnp.einsum('BHLK,BHMK->BHLM', q_BHLK, unit_keys(q_BHLK), precision=jax.lax.Precision.HIGHEST)
    logits = jnp.where(jnp.eye(layout.length, dtype=bool)[None, None], SELF_LOGIT, logits)
    counts_BHLM = jnp.where(allowed_pairs(request, layout), times_found(request, layout), 0)
    return masked_softmax(logits + jnp.log(jnp.maximum(counts_BHLM, 1).astype(jnp.float32)), counts_BHLM > 0)


def times_found(request: Request, layout: Layout) -> Int[Array, 'B H L M']:
    """By how many rounds each pair is found, at most 1 where pairs are counted once."""
    rounds, buckets_BHTL = make_rounds(request, layout)
    chunks_BHTL = rounds.slots_BHTL // jnp.int32(layout.size)
    steps_back = (chunks_BHTL[..., :, None] - chunks_BHTL[..., None, :]) % layout.chunks
    found = steps_back <= layout.before
    if layout.mechanism.within_buckets:
        found &= buckets_BHTL[..., :, None] == buckets_BHTL[..., None, :]
    counts = found.sum(axis=2, dtype=jnp.int32)
    return jnp.minimum(counts, 1) if layout.mechanism.deduplicate else counts


def allowed_pairs(request: Request, layout: Layout) -> Array:
    """Booleans [b, 1, L, M]: key in the query's segment, and not later where causal."""
    allowed = up_to_query(request) if layout.mechanism.causal else jnp.ones((1, 1, 1, 1), bool)
    return allowed & same_segment(request)
