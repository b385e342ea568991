"""Defines Nystrom attention: queries attend to landmarks and landmarks attend to keys,
joined by an approximate pseudo-inverse.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from efficient_attention.attention.dense_attention import masked_softmax
from efficient_attention.attention.mechanism import (
    Capabilities,
    KeyAccess,
    LearnedOperand,
    Mechanism,
    Requirements,
    ensure_kind,
)
from efficient_attention.attention.request import Request
from efficient_attention.attention.single_text_rows import (
    check_single_text_rows,
    mask_queries_without_keys,
    repeat_key_heads,
    valid_keys,
    valid_queries,
)
from efficient_attention.errors import require, require_at_least

HIGHEST = jax.lax.Precision.HIGHEST
BLOCK = 128  # number of tokens whose convolution is one matrix product


@dataclasses.dataclass(frozen=True)
class Nystrom(Mechanism):
    """Nystrom attention softmax(q k~^T) Z softmax(q~ k^T) v, where landmarks q~
    and k~ are means of neighbouring tokens.

    Logits are products times 1 / sqrt(K). Z approximates the pseudo-inverse of softmax(q~ k~^T). The number of
    iterations is part of the definition, because the converged inverse of such matrices gives worse outputs than six
    iterations. Rows of the weights sum to 1 as far as Z has converged; entries may be negative. All computations are in
    float32. There is no causal form.

    Source: Xiong et al. 2021, arXiv 2102.03902, equations 13 and 14. Z starts from each matrix's own norms; the
    released code starts from the largest norms of the batch.

    Args:
        landmarks: m, the number of landmarks. In a row of n valid tokens, landmark j is the mean of the tokens with
            indices from floor(j n / m) to before floor((j + 1) n / m).
        iterations: number of iterations that compute Z.
        convolution: odd width of a learned convolution of each head's values over positions, added to the output; 0 =
            none.
    """

    name = 'nystrom'
    # a landmark is a mean of neighbouring tokens, which must belong to one text
    requirements = Requirements(positions=False, whole_rows=True)
    capabilities = Capabilities(has_dropout=False)  # dropout needs weights per key, which are never computed
    key_access = KeyAccess(
        other_sequence=False,
        why_one_row="mixes queries in its landmarks, so a decoder's queries would leak later targets",
    )

    landmarks: int = 64
    iterations: int = 6
    convolution: int = 0

    def __post_init__(self) -> None:
        require_at_least(1, 'nystrom landmarks', self.landmarks)
        require_at_least(1, 'nystrom iterations', self.iterations)
        is_odd = self.convolution == 0 or (self.convolution > 0 and self.convolution % 2 == 1)
        require(is_odd, 'nystrom convolution', self.convolution, '0 or an odd width')

    def learned_operands(self, heads: int, width: int) -> dict[str, LearnedOperand]:  # noqa: ARG002
        """Returns the declaration of the learned convolution kernels [H, width], if the mechanism has a convolution."""
        if not self.convolution:
            return {}
        return {'convolution': LearnedOperand((heads, self.convolution), 1.0 / math.sqrt(3.0 * self.convolution))}


class Landmarks(NamedTuple):
    """The landmarks of queries and keys [B, H, m, K], and which landmarks are the mean of at least one token."""

    query_BHmK: Array
    key_BHmK: Array
    has_query_b1m: Bool[Array, 'b 1 m']
    has_key_b1m: Bool[Array, 'b 1 m']


def compute_landmarks(request: Request) -> Landmarks:
    """Returns the landmarks of queries and keys; the query landmarks include the scale 1 / sqrt(K)."""
    count, (heads, width) = ensure_kind(Nystrom, request.mechanism).landmarks, request.query.shape[2:]
    query_BLHK = request.query.astype(jnp.float32) / math.sqrt(width)
    query_BHmK, has_query_b1m = segment_means(query_BLHK, valid_queries(request), count)
    key_BGmK, has_key_b1m = segment_means(request.key.astype(jnp.float32), valid_keys(request), count)
    repeats = heads // key_BGmK.shape[1]
    key_BHmK = key_BGmK if repeats == 1 else jnp.repeat(key_BGmK, repeats, axis=1)
    return Landmarks(query_BHmK, key_BHmK, has_query_b1m, has_key_b1m)


def check_request(request: Request) -> None:
    """Raises a NotImplementedError for options of an attention request that Nystrom attention does not support."""
    has_convolution = bool(ensure_kind(Nystrom, request.mechanism).convolution)
    check_single_text_rows(
        request,
        dropout_on_weights=request.dropout is not None,
        convolution_for_unequal_lengths=has_convolution and request.query.shape[1] != request.key.shape[1],
    )


def landmark_inverse(means: Landmarks, iterations: int) -> Float[Array, 'B H m m']:
    """Returns Z, the approximate pseudo-inverse of the attention weights between landmarks;
    zeros for a landmark without tokens.
    """
    logits_BHmm = jnp.einsum('BHmK,BHnK->BHmn', means.query_BHmK, means.key_BHmK, precision=HIGHEST)
    between_BHmm, _ = masked_softmax(logits_BHmm, means.has_key_b1m[:, :, None])
    between_BHmm = jnp.where(means.has_query_b1m[..., None], between_BHmm, 0.0)
    return iterated_pseudo_inverse(between_BHmm, iterations)


def weights(request: Request) -> tuple[Float[Array, 'B H L M'], None]:
    """Returns Nystrom attention's dense weights of the keys, including the convolution."""
    check_request(request)
    mechanism, heads = ensure_kind(Nystrom, request.mechanism), request.query.shape[2]
    means, valid_BM = compute_landmarks(request), valid_keys(request)
    query_BLHK = request.query.astype(jnp.float32) / math.sqrt(request.query.shape[3])
    key_BMHK = repeat_key_heads(request.key, heads).astype(jnp.float32)
    allowed = jnp.ones((1, 1, 1, 1), bool) if valid_BM is None else valid_BM[:, None, None]
    to_landmarks_BHLm = jnp.einsum('BLHK,BHmK->BHLm', query_BLHK, means.key_BHmK, precision=HIGHEST)
    front_BHLm, _ = masked_softmax(to_landmarks_BHLm, means.has_key_b1m[:, :, None])
    to_keys_BHmM = jnp.einsum('BHmK,BMHK->BHmM', means.query_BHmK, key_BMHK, precision=HIGHEST)
    back_BHmM, _ = masked_softmax(to_keys_BHmM, allowed)
    middle_BHmm = landmark_inverse(means, mechanism.iterations)
    inner_BHmM = jnp.einsum('BHmn,BHnM->BHmM', middle_BHmm, back_BHmM, precision=HIGHEST)
    weights_BHLM = jnp.einsum('BHLm,BHmM->BHLM', front_BHLm, inner_BHmM, precision=HIGHEST)
    if mechanism.convolution:
        weights_BHLM = weights_BHLM + jnp.where(allowed, convolution_matrix(request), 0.0)
    return mask_queries_without_keys(weights_BHLM.swapaxes(1, 2), request).swapaxes(1, 2), None


def convolution_matrix(request: Request) -> Float[Array, '1 H L M']:
    """Returns the learned convolution as a matrix [1, H, L, M], whose entry
    (i, j) is kernel entry j - i + half the width.
    """
    kernel_HW = request.learned_operand('convolution')
    length, width = request.query.shape[1], kernel_HW.shape[1]
    places = jnp.arange(length)
    offset_LM = places[None] - places[:, None] + width // 2
    is_inside_LM = (offset_LM >= 0) & (offset_LM < width)
    return jnp.where(is_inside_LM, kernel_HW[:, jnp.clip(offset_LM, 0, width - 1)], 0.0)[None]


def segment_means(
    x_BLHK: Float[Array, 'B L H K'], valid_BL: Bool[Array, 'B L'] | None, count: int
) -> tuple[Float[Array, 'B H m K'], Bool[Array, 'b 1 m']]:
    """Returns the means of neighbouring valid tokens for each of `count` landmarks, and which landmarks have any token.

    With n valid tokens and m landmarks, landmark j averages tokens floor(j n / m) to before floor((j + 1) n / m).
    """
    batch, length, heads, width = x_BLHK.shape
    if valid_BL is None and length % count == 0:
        mean_BmHK = x_BLHK.reshape(batch, count, length // count, heads, width).mean(axis=2)
        return mean_BmHK.swapaxes(1, 2), jnp.ones((1, 1, count), bool)
    share_BLm = averaging_weights(jnp.ones((1, length), bool) if valid_BL is None else valid_BL, count)
    whole_BLm = jnp.broadcast_to(share_BLm, (batch, length, count))
    mean_BHmK = jnp.einsum('BLm,BLHK->BHmK', whole_BLm, x_BLHK, precision=HIGHEST)
    return mean_BHmK, (share_BLm > 0.0).any(axis=1)[:, None]


def averaging_weights(valid_BL: Bool[Array, 'B L'], count: int) -> Float[Array, 'B L m']:
    """Returns the weight [B, L, m] of each token in the mean of each landmark."""
    number_BL = jnp.cumsum(valid_BL, axis=1)  # counts from 1
    place_BL = (number_BL * count - 1) // jnp.maximum(number_BL[:, -1:], 1)
    is_mine_BLm = (place_BL[..., None] == jnp.arange(count)[None, None]) & valid_BL[..., None]
    mine_BLm = is_mine_BLm.astype(jnp.float32)
    return mine_BLm / jnp.maximum(mine_BLm.sum(axis=1, keepdims=True), 1.0)


def iterated_pseudo_inverse(matrix_BHmm: Float[Array, 'B H m m'], iterations: int) -> Float[Array, 'B H m m']:
    """Returns an approximate pseudo-inverse Z of the matrix A, after a fixed number of iterations.

    From A^T / (|A|_1 |A|_inf), each step sets Z <- Z / 4 (13 I - A Z (15 I - A Z (7 I - A Z))).
    Source: Xiong et al. 2021, arXiv 2102.03902, section 3.2, after Razavi et al. 2014; norms are each matrix's own.
    """
    identity = jnp.eye(matrix_BHmm.shape[-1], dtype=jnp.float32)[None, None]
    size = jnp.abs(matrix_BHmm)
    norms = size.sum(axis=-2).max(axis=-1) * size.sum(axis=-1).max(axis=-1)
    start_BHmm = matrix_BHmm.swapaxes(-1, -2) / jnp.where(norms > 0.0, norms, 1.0)[..., None, None]

    def step(inverse_BHmm: Array, _: None) -> tuple[Array, None]:
        product = jnp.matmul(matrix_BHmm, inverse_BHmm, precision=HIGHEST)
        inner = 7.0 * identity - product
        inner = 15.0 * identity - jnp.matmul(product, inner, precision=HIGHEST)
        inner = 13.0 * identity - jnp.matmul(product, inner, precision=HIGHEST)
        return 0.25 * jnp.matmul(inverse_BHmm, inner, precision=HIGHEST), None

    return jax.lax.scan(step, start_BHmm, length=iterations)[0]


def multiply_adds(mechanism: Nystrom, length: int, heads: int, width: int) -> int:
    """Returns Nystrom attention's multiply-adds for one row: products with landmarks,
    the iterated inverse, and the convolution.

    A length that the number of landmarks does not divide adds a product for the means.
    """
    count = mechanism.landmarks
    by_token = 4 * length * count * width
    if length % count:
        by_token += 2 * length * count * width
    between = count * count * width + 4 * mechanism.iterations * count**3 + count * count * width
    if mechanism.convolution:
        rows, blocks = convolution_block_sizes(length, mechanism.convolution)
        by_token += blocks * rows * (rows + mechanism.convolution - 1) * width
    return heads * (by_token + between)


def convolution_block_sizes(length: int, taps: int) -> tuple[int, int]:
    """Returns the block size of the convolution in tokens, and the number of blocks in a row;
    a block reads only itself and the next block.
    """
    rows = max(min(BLOCK, length), taps - 1)
    return rows, -(-length // rows)
