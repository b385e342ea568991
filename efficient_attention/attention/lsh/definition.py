"""Defines LSH attention: its options, which query reads which key, and the dense matrix of attention weights.

Source: Kitaev et al. 2020, arXiv 2001.04451 (Reformer), section 2, and the released code where it differs.

Queries and keys are one array (shared QK). The key is the unit vector k = q / |q|, and the logits are q . k without
another factor. (`Softmax` on keys sqrt(K) q / |q| has the same logits.) `request.key` is therefore never read. A token
reads itself only if it may read nothing else, because the logit of a position with itself is -1e5.

In each of T rounds the positions of a row are sorted by (segment, bucket, position) and cut into n chunks of S =
`bucket_size`. A query reads its chunk and the chunk before it; for the first chunk, the chunk before it is the last
chunk of the same round. Masks are then applied pair by pair, so no key outside the segment and no padding is ever read.
Sorting by segment first gives each packed segment separate chunks; sorted by bucket only, most of a chunk would be keys
that its queries may not read. Padding comes last. `hashing.py` computes the buckets, `sorted_rounds.py` the order.

The weights are one softmax over the keys of all rounds together. A pair that two rounds found counts twice unless
`deduplicate` is set.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from efficient_attention.attention.checks import has_equal_values
from efficient_attention.attention.dense_attention import causal_mask, masked_softmax, same_segment
from efficient_attention.attention.lsh.hashing import factor_bucket_count
from efficient_attention.attention.lsh.sorted_rounds import LSHLayout, make_rounds
from efficient_attention.attention.mechanism import (
    Capabilities,
    KeyAccess,
    Mechanism,
    Randomness,
    Requirements,
    ensure_kind,
    raise_unsupported,
    unsupported_error,
)
from efficient_attention.attention.request import Request
from efficient_attention.errors import require, require_at_least, require_truth_values

SELF_LOGIT = -1e5  # the logit of a position with itself, as in the library trax
SMALLEST_SQUARE = 1e-12  # added to |q|^2, so that a query of zeros gives a key of zeros instead of NaN


@dataclasses.dataclass(frozen=True)
class LSH(Mechanism):
    """Softmax attention over query-key pairs that share a chunk in any of several rounds. A round sorts positions by an
    angular hash and cuts them into chunks.

    The key is the unit vector of the query (shared QK), so `attend` takes query and key as the same array. Defaults
    follow the paper's released code rather than the paper: a query also reads keys of neighbouring buckets inside its
    chunks, and a pair found in two rounds counts twice. Source: Kitaev et al. 2020, arXiv 2001.04451, section 2.

    Args:
        bucket_size: positions in a chunk of the sorted order; a query reads its own and the previous chunk.
        rounds: independent hashes, T.
        buckets: hash values per round, an even number; 0 = 2 x max(1, L // bucket_size). Above 128 two hashes are
            combined, into a product of two even numbers that is at most `buckets`.
        causal: k <= q.
        within_buckets: read only keys of the query's own bucket (the paper's definition).
        deduplicate: count a pair once however many rounds found it (the paper's N term).
        sequential: compute the rounds one after another, so that temporary memory hardly grows with T.
    """

    name = 'lsh'
    requirements = Requirements(shared_qk=True)  # a key is the unit vector of its query
    capabilities = Capabilities(why_no_decoding='which keys a query reads depends on the tokens after it')
    key_access = KeyAccess(by_length=True)  # chunk and bucket counts depend on the length
    randomness = Randomness(always=True, for_all_heads=True)  # all heads' rotations are sampled together

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
        require_truth_values(
            'lsh',
            causal=self.causal,
            within_buckets=self.within_buckets,
            deduplicate=self.deduplicate,
            sequential=self.sequential,
        )
        require(self.buckets % 2 == 0, 'lsh buckets', self.buckets, 'even, or 0 to choose')


def layout_from_request(request: Request) -> LSHLayout:
    """Returns the static options and sizes with which LSH attention computes this attention request.

    Raises:
        NotImplementedError: another mechanism, a bias, grouped heads, or keys whose length, positions or segments
            differ from the queries'.
    """
    mechanism = ensure_kind(LSH, request.mechanism)
    queries, keys, heads, groups = (x.shape[axis] for axis in (1, 2) for x in (request.query, request.key))
    lacks = {
        'bias': request.bias is not None,
        f'cross attention: {queries} queries and {keys} keys': queries != keys,
        f'grouped heads: {heads} query and {groups} key heads': heads != groups,
    }
    raise_unsupported('lsh', lacks)
    for name, sides in (('positions', request.positions), ('segments', request.segments)):
        if sides is not None and not has_equal_values(*sides):
            raise unsupported_error(
                'lsh', f'support for key {name} unlike the query {name}; pass one array as query_{name} and key_{name}'
            )
    return layout_for_length(mechanism, queries, request.dropout.rate if request.dropout else 0.0)


def layout_for_length(mechanism: LSH, length: int, dropout_rate: float = 0.0) -> LSHLayout:
    """Returns the static options and sizes of LSH attention for rows of `length` positions."""
    return LSHLayout(
        length=length,
        size=min(mechanism.bucket_size, length),
        rounds=mechanism.rounds,
        buckets=mechanism.buckets or 2 * max(1, length // mechanism.bucket_size),
        causal=mechanism.causal,
        within_buckets=mechanism.within_buckets,
        deduplicate=mechanism.deduplicate,
        sequential=mechanism.sequential,
        dropout_rate=dropout_rate,
    )


def unit_keys(q: Float[Array, '*batch K']) -> Float[Array, '*batch K']:
    """Returns q / |q| in float32, which are the keys of shared-QK attention."""
    return q.astype(jnp.float32) * inverse_query_norm(q)[..., None]


def inverse_query_norm(q: Float[Array, '*batch K']) -> Float[Array, '*batch']:
    """Returns 1 / |q| in float32; the result is finite for a query of zeros."""
    return jax.lax.rsqrt(jnp.square(q.astype(jnp.float32)).sum(axis=-1) + SMALLEST_SQUARE)


def weights(request: Request) -> tuple[Float[Array, 'B H L L'], Float[Array, 'B H L']]:
    """Returns LSH attention's dense weights over the keys of all rounds, before dropout, and the log-sum-exp. A query's
    weights sum to 1, or to 0 if it has no key.
    """
    layout = layout_from_request(request)
    return weights_of_chunks(request, layout, *chunks_and_buckets(request, layout))


def chunks_and_buckets(request: Request, layout: LSHLayout) -> tuple[Int[Array, 'B H T L'], Int[Array, 'B H T L']]:
    """Returns the number of the chunk and of the bucket in which each hash round puts each token."""
    rounds, buckets_BHTL = make_rounds(request, layout)
    return rounds.slots_BHTL // jnp.int32(layout.size), buckets_BHTL


def weights_of_chunks(
    request: Request, layout: LSHLayout, chunks_BHTL: Int[Array, 'B H T L'], buckets_BHTL: Int[Array, 'B H T L']
) -> tuple[Float[Array, 'B H L L'], Float[Array, 'B H L']]:
    """Returns `weights` for given chunks and buckets."""
    q_BHLK = request.query.astype(jnp.float32).swapaxes(1, 2)
    logits_BHLM = jnp.einsum('BHLK,BHMK->BHLM', q_BHLK, unit_keys(q_BHLK), precision=jax.lax.Precision.HIGHEST)
    logits_BHLM = jnp.where(jnp.eye(layout.length, dtype=bool)[None, None], SELF_LOGIT, logits_BHLM)
    found_BHLM = count_rounds_with_pair(layout, chunks_BHTL, buckets_BHTL)
    counts_BHLM = jnp.where(is_allowed_pair(request, layout), found_BHLM, 0)
    return masked_softmax(logits_BHLM + jnp.log(jnp.maximum(counts_BHLM, 1).astype(jnp.float32)), counts_BHLM > 0)


def count_rounds_with_pair(
    layout: LSHLayout, chunks_BHTL: Int[Array, 'B H T L'], buckets_BHTL: Int[Array, 'B H T L']
) -> Int[Array, 'B H L M']:
    """Returns for each query-key pair in how many hash rounds they share a chunk; at most 1 if `deduplicate` is set."""
    steps_back_BHTLM = (chunks_BHTL[..., :, None] - chunks_BHTL[..., None, :]) % layout.chunk_count
    found_BHTLM = steps_back_BHTLM <= layout.previous_chunks
    if layout.within_buckets:
        found_BHTLM &= buckets_BHTL[..., :, None] == buckets_BHTL[..., None, :]
    counts_BHLM = found_BHTLM.sum(axis=2, dtype=jnp.int32)
    return jnp.minimum(counts_BHLM, 1) if layout.deduplicate else counts_BHLM


def is_allowed_pair(request: Request, layout: LSHLayout) -> Bool[Array, 'b 1 #L #M']:
    """Returns whether each key is in the query's segment and, in the causal form, at or before the query."""
    allowed_b1LM = causal_mask(request) if layout.causal else jnp.ones((1, 1, 1, 1), bool)
    return allowed_b1LM & same_segment(request)


def multiply_adds(mechanism: LSH, length: int, heads: int, width: int) -> int:
    """Returns LSH attention's multiply-adds for one row: in each round,
    the hash and two products over the pairs of each chunk.

    A chunk reads itself and the chunk before it; padding slots of the last chunk count as positions.
    """
    layout = layout_for_length(mechanism, length)
    hashes = length * sum(factor // 2 for factor in factor_bucket_count(layout.buckets))
    pairs = layout.chunk_count * layout.size**2 * (1 + layout.previous_chunks)
    return heads * mechanism.rounds * width * (hashes + 2 * pairs)
