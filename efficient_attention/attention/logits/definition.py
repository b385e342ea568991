"""Defines `PatternAttention`, the base class of mechanisms that turn logits into attention weights
over the keys that a pattern allows.

This file also computes these weights densely, as one array [B, H, L, M]. query_chunks.py computes them for a few
queries at a time; softmax has additional backends.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from efficient_attention.attention.dense_attention import apply_weight_dropout, combine_values, same_segment
from efficient_attention.attention.einsum import float32_einsum
from efficient_attention.attention.layer_choice import compute_for_layer, layer_index
from efficient_attention.attention.mechanism import Capabilities, KeyAccess, Mechanism, Requirements, ensure_kind
from efficient_attention.attention.patterns import Full, Pattern, head_patterns
from efficient_attention.attention.patterns.pattern import pattern_text
from efficient_attention.attention.relative import relative_logits
from efficient_attention.attention.request import Request
from efficient_attention.errors import require

FLOAT32, HIGHEST = jnp.dtype(jnp.float32), jax.lax.Precision.HIGHEST
Weights = tuple[Float[Array, 'B H L M'], Float[Array, 'B H L'] | None]
# function of an attention request and of the dtype and precision of products
Weigh = Callable[[Request, Any, Any], Weights]


@dataclasses.dataclass(frozen=True)
class PatternAttention(Mechanism):
    """A mechanism whose weights are a distribution over the keys that `pattern` allows,
    from logits such as q k^T / sqrt(K).

    Args:
        pattern: which query reads which key.
    """

    name = 'logits'
    capabilities = Capabilities(has_logits=True)

    pattern: Pattern = Full()

    def __post_init__(self) -> None:
        require(isinstance(self.pattern, Pattern), f'{self.name} pattern', self.pattern, 'a pattern, such as Causal()')

    def normalise_logits(self, logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M']) -> Weights:  # noqa: ARG002
        """Returns attention weights over the allowed keys, with zeros for queries without allowed keys, and the
        log-sum-exp or None.
        """
        raise NotImplementedError(f'{self.name} has no distribution')

    @property
    def is_causal(self) -> bool:
        """Whether the mechanism's pattern is causal."""
        return self.pattern.is_causal

    @functools.cached_property
    def requirements(self) -> Requirements:
        """Requires positions, unless the mechanism's pattern allows every query-key pair."""
        return Requirements(positions=self.pattern.uses_positions)

    @functools.cached_property
    def key_access(self) -> KeyAccess:
        """Describes which keys the pattern lets queries read; in some patterns this depends on the number of keys."""
        return KeyAccess(
            by_distance=self.pattern.is_distance_based,
            one_band=self.pattern.is_band,
            by_length=self.pattern.for_key_count(64) != self.pattern.for_key_count(4096),
        )

    def causal_window_size(self, length: int) -> int:
        """Returns how many positions back a causal query reads at most under the pattern, the query included; the
        result is at most `length`.
        """
        return int(min(self.pattern.for_key_count(length).reach.back + 1, length))

    def restrict_to_pattern(self, pattern: Pattern) -> 'PatternAttention':
        """Returns the mechanism over the query-key pairs that its own pattern and the argument `pattern` both allow."""
        return dataclasses.replace(self, pattern=self.pattern & pattern)

    def without_pattern(self) -> 'PatternAttention':
        """Returns the mechanism over all query-key pairs, without its pattern."""
        return dataclasses.replace(self, pattern=Full())

    def causal_alternative_text(self, text: str) -> str:  # noqa: ARG002
        """Returns the config text of the mechanism with its pattern made causal, as advice in error messages."""
        return f"'{self.name}(causal & ({pattern_text(self.pattern)}))', which keeps the pairs that look back"

    def differs_by_head(self, heads: int) -> bool:
        """Returns whether the pattern differs between heads, if there are `heads` heads in total."""
        return len(head_patterns(self.pattern, heads)) > 1

    def check_heads(self, heads: int) -> None:
        """Raises an InputError if the mechanism's pattern cannot be divided among this number of heads."""
        self.pattern.for_head(0, heads)

    def for_layer(self, layer: int | tuple[int, ...]) -> 'PatternAttention':
        """Returns the mechanism with the pattern of layer number `layer`, or of several layers (see
        `Pattern.for_layer`); patterns with random tiles differ by layer.
        """
        pattern = self.pattern.for_layer(layer)
        return self if pattern == self.pattern else dataclasses.replace(self, pattern=pattern)


def request_pattern(request: Request) -> Pattern:
    """Returns the pattern of an attention request's mechanism, for the request's number of keys."""
    return ensure_kind(PatternAttention, request.mechanism).pattern.for_key_count(request.full_row_key_count)


def dense_weights(
    request: Request, dtype: jnp.dtype = FLOAT32, precision: jax.lax.Precision | None = HIGHEST
) -> Weights:
    """Returns the attention weights of all query-key pairs, and the log-sum-exp or None. By default, matrix products
    have full float32 precision.
    """
    return normalised_weights(request.mechanism, scaled_logits(request, dtype, precision), allowed_pairs(request))


def normalised_weights(mechanism: Mechanism, logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M']) -> Weights:
    """Returns what a mechanism's `normalise_logits` returns: the attention weights, and the log-sum-exp or None.

    Raises:
        TypeError: a mechanism that a user has added returns something else.
    """
    found = ensure_kind(PatternAttention, mechanism).normalise_logits(logits_BHLM, allowed_bhLM)
    if not isinstance(found, tuple) or len(found) != 2:
        name = type(mechanism).__name__
        raise TypeError(f'{name}.normalise_logits must return the weights and the log-sum-exp or None')
    return found


def attend_dense(
    request: Request, weigh: Weigh = dense_weights
) -> tuple[Float[Array, 'B L H K'], Float[Array, 'B H L'] | None]:
    """Returns the attention output in the query's dtype and the float32 log-sum-exp;
    the scores of all pairs are in memory at once.

    This form is for short rows and supports every option of a request. Products are in the input's dtype, statistics in
    float32.
    """
    dtype = request.query.dtype
    weights_BHLM, lse_BHL = weigh(request, dtype, None)
    out_BLHK = combine_values(apply_weight_dropout(weights_BHLM, request), request.value, dtype, None)
    return out_BLHK.astype(dtype), lse_BHL


def allowed_pairs(request: Request) -> Bool[Array, 'b h L M']:
    """Returns which query may read which key, by pattern, positions and segments;
    axes b and h have size 1 if rows or heads do not differ.
    """
    positions = request.full_row_positions
    query_bL1, key_b1M = jnp.asarray(positions.query)[:, :, None], jnp.asarray(positions.key)[:, None, :]
    patterns = head_patterns(request_pattern(request), request.query.shape[2])

    def pattern_mask(patterns: tuple[Pattern, ...]) -> Array:
        return jnp.stack([pattern(query_bL1, key_b1M) for pattern in patterns], axis=1)

    allowed_bhLM = compute_for_layer(pattern_mask, tuple(patterns), layer_index(patterns[0], request.layer))
    return allowed_bhLM & same_segment(request)


def scaled_logits(request: Request, dtype: jnp.dtype, precision: jax.lax.Precision | None) -> Float[Array, 'B H L M']:
    """Returns float32 logits: q k^T / sqrt(K) or additive scores, plus the relative term and the bias.

    Matrix products have operands in `dtype`.
    """
    if request.additive is None:
        logits_BHLM = dot_logits(request.query, request.key, dtype, precision)
    else:
        logits_BHLM = additive_logits(request.query, request.key, request.additive)
    terms_bhlm = logit_terms(request, dtype, precision)
    return logits_BHLM if terms_bhlm is None else logits_BHLM + terms_bhlm


def dot_logits(
    q_BLHK: Array, k_BMGK: Array, dtype: jnp.dtype, precision: jax.lax.Precision | None
) -> Float[Array, 'B H L M']:
    """Returns float32 logits q k^T / sqrt(K) from operands in `dtype`; H / G query heads share a key head."""
    batch, queries, heads, width = q_BLHK.shape
    groups = k_BMGK.shape[2]
    q_BLGhK = (q_BLHK.astype(dtype) * (1.0 / math.sqrt(width))).reshape(batch, queries, groups, heads // groups, width)
    k_BMGK = k_BMGK.astype(dtype)
    logits_BGhLM = float32_einsum('BLGhK,BMGK->BGhLM', q_BLGhK, k_BMGK, precision)
    return logits_BGhLM.reshape(batch, heads, queries, k_BMGK.shape[1])


def logit_terms(request: Request, dtype: jnp.dtype, precision: jax.lax.Precision | None) -> Array | None:
    """Returns the sum of relative term and bias, float32 [1 or B, 1 or H, 1 or L, 1 or M];
    None if the request has no such term.
    """
    bias_bhlm = dense_bias(request)
    if request.relative is None:
        return bias_bhlm
    relative_BHLM = relative_logits(request.relative.astype(dtype), *request.positions, precision)
    return relative_BHLM if bias_bhlm is None else relative_BHLM + bias_bhlm


def dense_bias(request: Request) -> Array | None:
    """Returns the bias as a float32 array [1 or B, 1 or H, 1 or L, 1 or M];
    a bias function is evaluated on all positions.
    """
    bias = request.bias
    if bias is None:
        return None
    if callable(bias):
        positions = request.full_row_positions
        query_b1L1 = jnp.asarray(positions.query)[:, None, :, None]
        bias = bias(query_b1L1, jnp.asarray(positions.key)[:, None, None, :])
    return bias.astype(jnp.float32).reshape((1,) * (4 - bias.ndim) + bias.shape)


def additive_logits(
    query: Float[Array, 'B L H K'], key: Float[Array, 'B M G K'], vector_HK: Float[Array, 'H K']
) -> Float[Array, 'B H L M']:
    """Returns additive attention scores v tanh(q + k) in float32, unscaled; H / G query heads share a key head.

    With q = W s and k = U h these are the scores of Bahdanau et al. 2014, arXiv 1409.0473, appendix A.1.2. They also
    equal "concat" in Luong et al. 2015, arXiv 1508.04025, equation 8, whose matrix times [h; s] is such a sum.
    """
    batch, queries, heads, width = query.shape
    keys, groups = key.shape[1:3]
    q_BLGhK = query.astype(jnp.float32).reshape(batch, queries, groups, heads // groups, width)
    q_BGhL1K = q_BLGhK.transpose(0, 2, 3, 1, 4)[..., None, :]
    k_BG11MK = key.astype(jnp.float32).swapaxes(1, 2)[:, :, None, None]
    vector_1Gh11K = vector_HK.astype(jnp.float32).reshape(1, groups, heads // groups, 1, 1, width)
    logits_BGhLM = (jnp.tanh(q_BGhL1K + k_BG11MK) * vector_1Gh11K).sum(axis=-1)
    return logits_BGhLM.reshape(batch, heads, queries, keys)


def multiply_adds(_: Mechanism, length: int, heads: int, width: int) -> int:
    """Returns the multiply-adds of one row: two products over every query-key pair, whatever the pattern. The step from
    logits to weights is not counted.
    """
    return 2 * width * length * length * heads
