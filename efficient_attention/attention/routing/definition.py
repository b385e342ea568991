"""Defines routing attention: softmax among the tokens nearest to a centroid, averaged over the clusters of a token."""

import dataclasses
import functools
import math

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from efficient_attention.attention.dense_attention import causal_mask, masked_softmax, same_segment
from efficient_attention.attention.mechanism import (
    Capabilities,
    KeyAccess,
    LearnedOperand,
    Mechanism,
    Requirements,
    ensure_kind,
    raise_unsupported,
)
from efficient_attention.attention.request import Request
from efficient_attention.attention.routing.centroids import (
    HIGHEST,
    attach_centroid_statistics,
    layer_norm,
    nearest_tokens,
    score_centroids,
)
from efficient_attention.attention.routing.windows import make_window_blocks
from efficient_attention.attention.single_text_rows import repeat_key_heads, valid_keys
from efficient_attention.errors import require, require_at_least, require_truth_values


@dataclasses.dataclass(frozen=True)
class Routing(Mechanism):
    """Softmax attention inside clusters: each centroid of a head takes the queries and, separately,
    the keys that are nearest to it.

    Queries and keys are layer-normalised without scale or bias, giving q' and k' of length sqrt(K). A centroid m takes
    the `size` queries of the row with the largest m q' and, separately, the `size` keys with the largest m k'. Ties go
    to the earlier token; padding is never taken. The queries of a cluster read its keys by a softmax of q' k' /
    sqrt(K). They read only keys of their segment, and in the causal form only keys up to the query. A query in several
    clusters gets the mean over the clusters in which it may read any key, and zeros if there is none.

    The causal form masks later keys inside clusters, but which tokens a centroid takes depends on the whole row, as in
    LSH. The gradient to later tokens is zero, yet a changed later token may change which keys are read. Other texts of
    a packed row also take places in clusters.

    The first `local_heads` heads can be local instead: softmax of q k / sqrt(K) over the keys at most `window` tokens
    away.

    Centroids are not trained by a loss. They start as random points of the unit sphere. They are running means of the
    vectors q' / sqrt(K) and k' / sqrt(K) nearest to them. Training updates them once per step from sums over the global
    batch (`LearnedOperand.is_running_mean`). There is no k-means of the first batch, and no loss term that pulls tokens
    towards their centroids.

    Source: Roy et al. 2020, arXiv 2003.05997, section 4.1 and algorithm 1, where causal queries are the keys, as with
    `model.shared_qk`. The mean over clusters and the mean over the tokens of a step follow P. Wang's code.

    Args:
        clusters: centroids of each head, C; about the square root of the length.
        size: w, tokens that each centroid takes by query, and by key; about length / C.
        local_heads: number of local heads; half of the heads in the paper.
        window: how many tokens a local head reads to each side of a query.
        causal: no query reads a later key.
    """

    name = 'routing'
    capabilities = Capabilities(why_no_decoding='clusters are chosen from the whole row')
    key_access = KeyAccess(other_sequence=False, by_other_texts=True)  # texts in a row share clusters

    clusters: int = 64
    size: int = 64
    local_heads: int = 0
    window: int = 64
    causal: bool = False

    def __post_init__(self) -> None:
        for name in ('clusters', 'size', 'window'):
            require_at_least(1, f'routing {name}', getattr(self, name))
        require_at_least(0, 'routing local_heads', self.local_heads)
        is_read = self.local_heads != 0 or self.window == Routing.window
        require(is_read, 'routing window', self.window, f'{Routing.window} without local heads')
        require_truth_values('routing', causal=self.causal)

    @functools.cached_property
    def requirements(self) -> Requirements:
        """Requires positions for the causal form and for local heads; clusters depend only on content."""
        return Requirements(positions=self.causal or self.local_heads > 0)

    def learned_operands(self, heads: int, width: int) -> dict[str, LearnedOperand]:
        """Declares the learned centroids [H, C, K + 1] of the heads that are not local: C vectors per head, with a last
        column for counts of tokens.
        """
        routed = heads - self.local_heads
        if routed < 1:  # `check_heads` raises the error if all heads are local
            return {}
        return {
            'centroids': LearnedOperand(
                (routed, self.clusters, width + 1), 1.0 / math.sqrt(width), is_running_mean=True
            )
        }

    def differs_by_head(self, heads: int) -> bool:
        """Returns True if there are several heads, because each head has its own centroids."""
        return heads > 1

    def check_heads(self, heads: int) -> None:
        """Raises an InputError if all heads would be local."""
        require(self.local_heads < heads, 'routing local_heads', self.local_heads, f'below {heads}, the heads')


def check_request(request: Request) -> None:
    """Raises a NotImplementedError for options that routing attention does not support,
    and an InputError if all heads are local.
    """
    mechanism, (queries, keys) = ensure_kind(Routing, request.mechanism), (request.query.shape[1], request.key.shape[1])
    mechanism.check_heads(request.query.shape[2])
    form = 'causal form' if mechanism.causal else 'local heads'
    is_moved = mechanism.requirements.positions and not request.has_default_positions
    lacks = {
        'additive bias': request.bias is not None,
        'log-sum-exp': request.return_lse,
        f'cross attention: {queries} queries and {keys} keys': queries != keys,
        f'{form} for other positions than 0, 1, ...': is_moved,
    }
    raise_unsupported('routing', lacks)


def valid_queries(request: Request) -> Bool[Array, 'B L'] | None:
    """Returns which queries are not padding; None means all queries."""
    return None if request.segments is None else jnp.not_equal(request.segments.query, 0)


def is_allowed_pair(request: Request) -> Bool[Array, 'b 1 #L #M']:
    """Returns whether each key is in the query's segment and, in the causal form, at or before the query."""
    allowed_b1LM = same_segment(request)
    return allowed_b1LM & causal_mask(request) if ensure_kind(Routing, request.mechanism).causal else allowed_b1LM


def weights(request: Request) -> tuple[Float[Array, 'B H L M'], None]:
    """Returns routing attention's dense weights, first of the local heads and then of the heads with clusters."""
    check_request(request)
    local = ensure_kind(Routing, request.mechanism).local_heads
    query_BLHK, key_BMHK = request.query, repeat_key_heads(request.key, request.query.shape[2])
    found = [cluster_weights(request, query_BLHK[:, :, local:], key_BMHK[:, :, local:])]
    if local:
        found.insert(0, local_weights(request, query_BLHK[:, :, :local], key_BMHK[:, :, :local]))
    return jnp.concatenate(found, axis=1), None


def local_weights(
    request: Request, query_BLHK: Float[Array, 'B L H K'], key_BMHK: Float[Array, 'B M H K']
) -> Float[Array, 'B H L M']:
    """Returns the attention weights of the local heads, which read only keys in a window."""
    mechanism, (length, width) = ensure_kind(Routing, request.mechanism), query_BLHK.shape[1::2]
    query_BLHK, key_BMHK = query_BLHK.astype(jnp.float32) / math.sqrt(width), key_BMHK.astype(jnp.float32)
    logits_BHLM = jnp.einsum('BLHK,BMHK->BHLM', query_BLHK, key_BMHK, precision=HIGHEST)
    places = jnp.arange(length)
    is_near_LM = jnp.abs(places[:, None] - places[None]) <= mechanism.window
    return masked_softmax(logits_BHLM, is_near_LM[None, None] & is_allowed_pair(request))[0]


def cluster_weights(
    request: Request, query_BLHK: Float[Array, 'B L H K'], key_BMHK: Float[Array, 'B M H K']
) -> Float[Array, 'B H L M']:
    """Returns the attention weights of heads with clusters: the mean over a query's clusters
    of its softmax weights in each cluster.

    The softmax needs no maximum subtracted, because a logit is at most sqrt(K) for any vectors.
    """
    size, width = ensure_kind(Routing, request.mechanism).size, query_BLHK.shape[3]
    query_BLHK, key_BMHK, centroids_HCX = (
        layer_norm(query_BLHK),
        layer_norm(key_BMHK),
        request.learned_operand('centroids'),
    )
    queries = score_centroids(query_BLHK.swapaxes(1, 2), centroids_HCX, valid_queries(request))
    keys = score_centroids(key_BMHK.swapaxes(1, 2), centroids_HCX, valid_keys(request))
    length = query_BLHK.shape[1]
    takes_BHCL, takes_BHCM = (is_in_cluster(nearest_tokens(near, size), length) for near in (queries, keys))
    logits_BHLM = jnp.einsum('BLHK,BMHK->BHLM', query_BLHK / math.sqrt(width), key_BMHK, precision=HIGHEST)
    parts_BHLM = jnp.where(is_allowed_pair(request), jnp.exp(logits_BHLM), 0.0)
    total_BHCL = jnp.einsum('BHLM,BHCM->BHCL', parts_BHLM, takes_BHCM, precision=HIGHEST)
    is_read_BHCL = (takes_BHCL > 0.0) & (total_BHCL > 0.0)
    clusters_BH1L = jnp.maximum(is_read_BHCL.sum(axis=2, keepdims=True), 1).astype(jnp.float32)
    shares_BHCL = jnp.where(is_read_BHCL, 1.0 / jnp.where(is_read_BHCL, total_BHCL * clusters_BH1L, 1.0), 0.0)
    factors_BHLM = jnp.einsum('BHCL,BHCM->BHLM', shares_BHCL, takes_BHCM, precision=HIGHEST)
    return attach_centroid_statistics(parts_BHLM * factors_BHLM, centroids_HCX, queries, keys)


def is_in_cluster(places_BHCw: Int[Array, 'B H C w'], length: int) -> Float[Array, 'B H C L']:
    """Returns 1.0 for the tokens in each cluster, which are given by their indices, and 0.0 for all other tokens."""
    return (places_BHCw[..., None] == jnp.arange(length)[None, None, None, None]).any(axis=3).astype(jnp.float32)


def multiply_adds(mechanism: Routing, length: int, heads: int, width: int) -> int:
    """Returns routing attention's multiply-adds for one row: tokens times centroids,
    and two products over pairs in clusters and windows.

    The centroids' statistics, which only training computes, are left out.
    """
    size, routed = min(mechanism.size, length), heads - mechanism.local_heads
    in_clusters = 2 * mechanism.clusters * width * (length + size**2)
    cut = make_window_blocks(length, mechanism.window, causal=mechanism.causal)
    in_windows = 2 * cut.blocks * cut.size**2 * cut.read_block_count * width
    return routed * in_clusters + mechanism.local_heads * in_windows
