"""`PatternAttention`, the base class of mechanisms that turn the logits of a pattern's keys into attention weights.

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

from efficient_attention.attention.einsum import float32_einsum
from efficient_attention.attention.mechanism import Capabilities, KeyAccess, Mechanism, Requirements, ensure_kind
from efficient_attention.attention.patterns import Full, Pattern, head_patterns
from efficient_attention.attention.patterns.pattern import pattern_text
from efficient_attention.attention.relative import relative_logits
from efficient_attention.attention.request import Request
from efficient_attention.attention.weights import combine_values, drop_weights, same_segment
from efficient_attention.errors import require

FLOAT32, HIGHEST = jnp.dtype(jnp.float32), jax.lax.Precision.HIGHEST
Weights = tuple[Float[Array, 'B H L M'], Float[Array, 'B H L'] | None]
Weigh = Callable[[Request, Any, Any], Weights]  # arguments: request, dtype and precision of products


@dataclasses.dataclass(frozen=True)
class PatternAttention(Mechanism):
    """A distribution over the keys that `pattern` allows, from logits such as q k^T / sqrt(K).

    Args:
        pattern: which query reads which key.
    """

    name = 'logits'
    capabilities = Capabilities(has_logits=True)

    pattern: Pattern = Full()

    def __post_init__(self) -> None:
        require(isinstance(self.pattern, Pattern), f'{self.name} pattern', self.pattern, 'a pattern, such as Causal()')

    def normalise_logits(self, logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M']) -> Weights:  # noqa: ARG002
        """Returns the weights of the allowed keys, zeros for queries without keys, and the log-sum-exp or None."""
        raise NotImplementedError(f'{self.name} has no distribution')

    @property
    def is_causal(self) -> bool:
        """Whether its pattern is causal."""
        return self.pattern.is_causal

    @functools.cached_property
    def requirements(self) -> Requirements:
        """Requires positions, unless its pattern allows every pair."""
        return Requirements(positions=self.pattern.uses_positions)

    @functools.cached_property
    def key_access(self) -> KeyAccess:
        """Reads keys as its pattern says; some patterns place random or last global tiles by the number of keys."""
        return KeyAccess(
            by_distance=self.pattern.is_distance_based,
            one_band=self.pattern.is_band,
            by_length=self.pattern.for_key_count(64) != self.pattern.for_key_count(4096),
        )

    def causal_window_size(self, length: int) -> int:
        """Returns the largest number of the last `length` positions that a causal query reads, by its pattern."""
        return int(min(self.pattern.for_key_count(length).reach.back + 1, length))

    def restrict_to_pattern(self, pattern: Pattern) -> 'PatternAttention':
        """Returns the mechanism over the pairs that both its pattern and `pattern` allow."""
        return dataclasses.replace(self, pattern=self.pattern & pattern)

    def without_pattern(self) -> 'PatternAttention':
        """Returns the mechanism over all pairs, without its pattern."""
        return dataclasses.replace(self, pattern=Full())

    def causal_text(self, text: str) -> str:  # noqa: ARG002
        """Returns the mechanism's text over its pattern & causal, for error messages."""
        return f"'{self.name}(causal & ({pattern_text(self.pattern)}))', which keeps the pairs that look back"

    def differs_by_head(self, heads: int) -> bool:
        """Returns whether its pattern differs between heads, with `heads` heads in total."""
        return len(head_patterns(self.pattern, heads)) > 1

    def check_heads(self, heads: int) -> None:
        """Raises an InputError if its pattern cannot be divided among this number of heads."""
        self.pattern.for_head(0, heads)

    def for_layer(self, layer: int) -> 'PatternAttention':
        """Returns the mechanism with its pattern for layer number `layer`; random tiles differ by layer."""
        pattern = self.pattern.for_layer(layer)
        return self if pattern == self.pattern else dataclasses.replace(self, pattern=pattern)


def request_pattern(request: Request) -> Pattern:
    """Returns the pattern of the mechanism of an attention request, with the request's number of keys set."""
    return ensure_kind(PatternAttention, request.mechanism).pattern.for_key_count(request.full_row_key_count)


def dense_weights(
    request: Request, dtype: jnp.dtype = FLOAT32, precision: jax.lax.Precision | None = HIGHEST
) -> Weights:
    """Returns the dense weights, and the log-sum-exp or None; by default from products in full float32."""
    logits_BHLM = scaled_logits(request, dtype, precision)
    return ensure_kind(PatternAttention, request.mechanism).normalise_logits(logits_BHLM, allowed_pairs(request))


def attend_dense(
    request: Request, weigh: Weigh = dense_weights
) -> tuple[Float[Array, 'B L H K'], Float[Array, 'B H L'] | None]:
    """Returns output in the query's dtype and float32 log-sum-exp, for short rows; supports every request option.

    Products are in the input's dtype, statistics in float32. All scores [B, H, L, M] are in memory together.
    """
    dtype = request.query.dtype
    weights_BHLM, lse_BHL = weigh(request, dtype, None)
    out_BLHK = combine_values(drop_weights(weights_BHLM, request), request.value, dtype, None)
    return out_BLHK.astype(dtype), lse_BHL


def allowed_pairs(request: Request) -> Bool[Array, 'b h L M']:
    """Returns which query may read which key by pattern, positions and segments; b and h are 1 if nothing differs."""
    positions = request.full_row_positions
    query_bL1, key_b1M = jnp.asarray(positions.query)[:, :, None], jnp.asarray(positions.key)[:, None, :]
    patterns = head_patterns(request_pattern(request), request.query.shape[2])
    allowed_bhLM = jnp.stack([pattern(query_bL1, key_b1M) for pattern in patterns], axis=1)
    return allowed_bhLM & same_segment(request)


def scaled_logits(request: Request, dtype: jnp.dtype, precision: jax.lax.Precision | None) -> Float[Array, 'B H L M']:
    """Returns q k^T / sqrt(K), or additive scores, plus relative term and bias, in float32.

    Operands of products are in `dtype`.
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
    """Returns q k^T / sqrt(K) in float32, from operands in `dtype`; H / G query heads share a key head."""
    batch, queries, heads, width = q_BLHK.shape
    groups = k_BMGK.shape[2]
    q_BLGhK = (q_BLHK.astype(dtype) * (1.0 / math.sqrt(width))).reshape(batch, queries, groups, heads // groups, width)
    k_BMGK = k_BMGK.astype(dtype)
    logits_BGhLM = float32_einsum('BLGhK,BMGK->BGhLM', q_BLGhK, k_BMGK, precision)
    return logits_BGhLM.reshape(batch, heads, queries, k_BMGK.shape[1])


def logit_terms(request: Request, dtype: jnp.dtype, precision: jax.lax.Precision | None) -> Array | None:
    """Returns the sum of relative term and bias, float32 [1 or B, 1 or H, 1 or L, 1 or M]; None without either."""
    bias_bhlm = dense_bias(request)
    if request.relative is None:
        return bias_bhlm
    relative_BHLM = relative_logits(request.relative.astype(dtype), *request.positions, precision)
    return relative_BHLM if bias_bhlm is None else relative_BHLM + bias_bhlm


def dense_bias(request: Request) -> Array | None:
    """Returns the bias, float32 [1 or B, 1 or H, 1 or L, 1 or M]; functions are evaluated on all positions."""
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
    """Returns v tanh(q + k) in float32, unscaled; H / G query heads share a key head.

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
    """Returns the multiply-adds of one row: two products over every pair, for any pattern; sorting is left out."""
    return 2 * width * length * length * heads
