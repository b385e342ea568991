"""Softmax attention over a pattern defined: who reads whom, the logits, and the weights as a dense matrix."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from efficient_attention.attention.einsum import float32_einsum
from efficient_attention.attention.mechanism import Mechanism, of_kind
from efficient_attention.attention.patterns import Full, Pattern, head_patterns
from efficient_attention.attention.relative import relative_logits
from efficient_attention.attention.request import Request
from efficient_attention.attention.weights import masked_softmax, same_segment
from efficient_attention.errors import require, require_at_least


@dataclasses.dataclass(frozen=True)
class Softmax(Mechanism):
    """softmax(q k^T / sqrt(K)) v over the pairs that `pattern` allows.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1.

    Args:
        pattern: who may read whom.
        tile: S, positions of a tile of scores on the backend `blocked`; results do not depend on it.
    """

    name = 'softmax'

    pattern: Pattern = Full()
    tile: int = dataclasses.field(default=64, repr=False)

    def __post_init__(self) -> None:
        require(isinstance(self.pattern, Pattern), 'softmax pattern', self.pattern, 'a pattern, such as Causal()')
        require_at_least(1, 'softmax tile', self.tile)

    @property
    def is_causal(self) -> bool:
        """Whether its pattern lets no query read a later key."""
        return self.pattern.is_causal

    @property
    def compares_positions(self) -> bool:
        """Whether its pattern needs to know how query and key positions relate."""
        return self.pattern.compares_positions

    @property
    def reads_length(self) -> bool:
        """Whether its pattern places random tiles or the last global tokens by the number of keys."""
        return self.pattern.for_keys(64) != self.pattern.for_keys(4096)

    @property
    def has_logits(self) -> bool:
        """True: a bias or a relative term adds to q k^T."""
        return True

    @property
    def splits_tokens(self) -> bool:
        """True: results over parts of the keys merge."""
        return True

    @property
    def has_backends(self) -> bool:
        """True: `backend` chooses among those of serve.py."""
        return True

    @property
    def goes_by_distance(self) -> bool:
        """Whether query position - key position alone decides who may read whom."""
        return self.pattern.goes_by_distance

    @property
    def is_band(self) -> bool:
        """Whether its pattern lets a query read all keys within one run of distances and no others."""
        return self.pattern.is_band

    def keys_back(self, length: int) -> int:
        """How many of `length` positions a causal query reads at most: itself and as far as its pattern reaches."""
        return int(min(self.pattern.for_keys(length).reach.back + 1, length))

    def within(self, pattern: Pattern) -> 'Softmax':
        """Softmax over the pairs that both its pattern and this one allow."""
        return dataclasses.replace(self, pattern=self.pattern & pattern)

    def causal_form(self, text: str) -> str:
        """Its pattern's text & causal, for error lines."""
        return f"'causal & ({text})', which keeps the pairs that look back"

    def differs_by_head(self, heads: int) -> bool:
        """Whether its pattern differs between some of so many heads."""
        return len(head_patterns(self.pattern, heads)) > 1

    def check_heads(self, heads: int) -> None:
        """Raises an InputError where its pattern cannot be split among this number of heads."""
        self.pattern.for_head(0, heads)

    def for_layer(self, layer: int) -> 'Softmax':
        """Softmax over its pattern for layer number `layer`, which may draw its tiles anew."""
        return dataclasses.replace(self, pattern=self.pattern.for_layer(layer))


def pattern_of(request: Request) -> Pattern:
    """The pattern of the request's `Softmax`, for its number of keys."""
    return of_kind(Softmax, request.mechanism).pattern.for_keys(request.keys_of_row)


def weights(request: Request) -> tuple[Float[Array, 'B H L M'], Float[Array, 'B H L']]:
    """The dense weights and the log-sum-exp, products in full float32 on accelerators too."""
    logits_BHLM = scaled_logits(request, jnp.dtype(jnp.float32), jax.lax.Precision.HIGHEST)
    return masked_softmax(logits_BHLM, allowed_pairs(request))


def allowed_pairs(request: Request) -> Bool[Array, 'b h L M']:
    """Which query may read which key, from pattern, positions and segments; b and h are 1 where nothing differs."""
    positions = request.positions_in_row
    query_bL1, key_b1M = jnp.asarray(positions.query)[:, :, None], jnp.asarray(positions.key)[:, None, :]
    patterns = head_patterns(pattern_of(request), request.query.shape[2])
    allowed_bhLM = jnp.stack([pattern(query_bL1, key_b1M) for pattern in patterns], axis=1)
    return allowed_bhLM & same_segment(request)


def scaled_logits(request: Request, dtype: jnp.dtype, precision: jax.lax.Precision | None) -> Float[Array, 'B H L M']:
    """q k^T / sqrt(K) + relative term + bias in float32, from products of operands in `dtype`.

    A key head serves H / G query heads.
    """
    q_BLHK, k_BMGK = request.query, request.key
    batch, queries, heads, width = q_BLHK.shape
    groups = k_BMGK.shape[2]
    q_BLGhK = (q_BLHK.astype(dtype) * (1.0 / math.sqrt(width))).reshape(batch, queries, groups, heads // groups, width)
    k_BMGK = k_BMGK.astype(dtype)
    logits_BGhLM = float32_einsum('BLGhK,BMGK->BGhLM', q_BLGhK, k_BMGK, precision)
    logits_BHLM = logits_BGhLM.reshape(batch, heads, queries, k_BMGK.shape[1])
    terms_bhlm = logit_terms(request, dtype, precision)
    return logits_BHLM if terms_bhlm is None else logits_BHLM + terms_bhlm


def logit_terms(request: Request, dtype: jnp.dtype, precision: jax.lax.Precision | None) -> Array | None:
    """The relative term and the bias, float32 [1 or B, 1 or H, 1 or L, 1 or M]; None where there is neither."""
    bias_bhlm = dense_bias(request)
    if request.relative is None:
        return bias_bhlm
    relative_BHLM = relative_logits(request.relative.astype(dtype), *request.positions, precision)
    return relative_BHLM if bias_bhlm is None else relative_BHLM + bias_bhlm


def dense_bias(request: Request) -> Array | None:
    """The bias as a float32 array [1 or B, 1 or H, ...] like [B, H, L, M]; a function is evaluated on all positions."""
    bias = request.bias
    if bias is None:
        return None
    if callable(bias):
        positions = request.positions_in_row
        query_b1L1 = jnp.asarray(positions.query)[:, None, :, None]
        bias = bias(query_b1L1, jnp.asarray(positions.key)[:, None, None, :])
    return bias.astype(jnp.float32).reshape((1,) * (4 - bias.ndim) + bias.shape)
