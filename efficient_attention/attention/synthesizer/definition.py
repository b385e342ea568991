"""Defines synthesizers: softmax over a pattern, with logits from learned tables instead of query-key products."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from efficient_attention.attention.dense_attention import masked_softmax
from efficient_attention.attention.implementation import Implementation
from efficient_attention.attention.logits.definition import (
    PatternAttention,
    Weights,
    allowed_pairs,
    dot_logits,
    logit_terms,
)
from efficient_attention.attention.mechanism import (
    Capabilities,
    KeyAccess,
    LearnedOperand,
    Mechanism,
    Requirements,
    ensure_kind,
    raise_unsupported,
)
from efficient_attention.attention.patterns import Full, Pattern
from efficient_attention.attention.request import Numbers, Request
from efficient_attention.errors import require, require_at_least

KINDS = ('dense', 'random', 'factorized', 'random+dot')
FLOAT32, HIGHEST = jnp.dtype(jnp.float32), jax.lax.Precision.HIGHEST


@dataclasses.dataclass(frozen=True)
class Synthesizer(PatternAttention):
    """Softmax attention whose logit for query position i and key position j comes from learned tables: relu(q) W_j,
    R_ij, or R_ij as a product of two tables.

    Source: Tay et al. 2020, arXiv 2005.00743, section 3. Logits are not scaled, except q k / sqrt(K) of 'random+dot'.
    Positions are positions in the row. Time and memory equal the time and memory of softmax attention over the same
    pattern.

    Args:
        kind: 'dense' = relu(q) W_j, with a vector for each key position; 'random' = R_ij, independent of the tokens;
            'factorized' = R_ij as the product of two tables [length, rank]; 'random+dot' = R_ij + q k / sqrt(K).
        length: number of positions, for which the tables have rows.
        rank: only for 'factorized', the width of its two tables. If it exceeds a head's width, softmax gets queries,
            keys and values of this width.
        pattern: which query reads which key.
    """

    name = 'synthesizer'
    capabilities = Capabilities(has_logits=True, has_backends=True)

    kind: str = 'dense'
    length: int = 512
    rank: int = 8
    pattern: Pattern = dataclasses.field(default=Full(), kw_only=True)

    def __post_init__(self) -> None:
        PatternAttention.__post_init__(self)
        require(self.kind in KINDS, 'synthesizer kind', self.kind, f'one of {", ".join(KINDS)}')
        require_at_least(1, 'synthesizer length', self.length)
        require_at_least(1, 'synthesizer rank', self.rank)
        is_read = self.kind == 'factorized' or self.rank == Synthesizer.rank
        require(is_read, 'synthesizer rank', self.rank, f'{Synthesizer.rank} with kind {self.kind!r}, which has none')

    @functools.cached_property
    def requirements(self) -> Requirements:
        """Requires positions, which must be below `length`, the number of positions in the learned tables."""
        return Requirements(longest=self.length)

    @functools.cached_property
    def key_access(self) -> KeyAccess:
        """Describes which keys the pattern lets queries read. This never depends on the distance only, because each
        pair of positions has a separate logit.
        """
        return KeyAccess(
            by_length=self.pattern.for_key_count(64) != self.pattern.for_key_count(4096),
            queries=self.kind in ('dense', 'random+dot'),
            keys=self.kind == 'random+dot',
        )

    @property
    def reads_table_as_logits(self) -> bool:
        """Whether softmax attention gets the learned table as a bias; otherwise it gets learned tables as queries and
        keys.
        """
        return self.kind in ('random', 'random+dot')

    def softmax_head_width(self, width: int) -> int:
        """Returns the width of the queries and keys that softmax attention gets,
        for synthesizer heads of this width.
        """
        return max(width, self.rank) if self.kind == 'factorized' else width

    def learned_operands(self, heads: int, width: int) -> dict[str, LearnedOperand]:
        """Returns the declarations of the learned tables of all heads, by name."""
        if self.kind == 'dense':
            return {'keys': LearnedOperand((heads, self.length, width), 1.0 / math.sqrt(width))}
        if self.kind == 'factorized':
            factor = LearnedOperand((heads, self.length, self.rank), self.rank**-0.25)
            return {'queries': factor, 'keys': factor}
        return {'table': LearnedOperand((heads, self.length, self.length), 1.0)}

    def differs_by_head(self, heads: int) -> bool:
        """Returns True if there are several heads, because each head has its own tables."""
        return heads > 1

    def causal_alternative_text(self, text: str) -> str:  # noqa: ARG002
        """Returns the synthesizer's config text with a causal pattern, as advice in error messages."""
        return f"'synthesizer({self.kind!r}, {self.length}, pattern=causal)'"

    def normalise_logits(self, logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M']) -> Weights:
        """Returns the softmax of the logits over the allowed keys, and the log-sum-exp."""
        return masked_softmax(logits_BHLM, allowed_bhLM)


def check_request(request: Request) -> None:
    """Raises a NotImplementedError for options of an attention request that synthesizers do not support."""
    mechanism = ensure_kind(Synthesizer, request.mechanism)
    most = max(request.query.shape[1], request.key.shape[1])
    lacks = {
        f'support for {most} positions, only for up to {mechanism.length}': most > mechanism.length,
        'additive scores': request.additive is not None,
    }
    raise_unsupported('synthesizer', lacks)


def weights(request: Request) -> Weights:
    """Returns the synthesizer's dense attention weights and the log-sum-exp."""
    check_request(request)
    logits_BHLM = synthesized_logits(request)
    if ensure_kind(Synthesizer, request.mechanism).kind == 'random+dot':
        logits_BHLM = logits_BHLM + dot_logits(request.query, request.key, FLOAT32, HIGHEST)
    terms_bhlm = logit_terms(request, FLOAT32, HIGHEST)
    logits_BHLM = logits_BHLM if terms_bhlm is None else logits_BHLM + terms_bhlm
    shape = request.query.shape[0], request.query.shape[2], request.query.shape[1], request.key.shape[1]
    return masked_softmax(jnp.broadcast_to(logits_BHLM, shape), allowed_pairs(request))


def synthesized_logits(request: Request) -> Float[Array, 'b H L M']:
    """Returns the logits that the learned tables give for the positions of queries and keys."""
    query_bL, key_bM = request.full_row_positions
    mechanism = ensure_kind(Synthesizer, request.mechanism)
    if mechanism.kind in ('random', 'random+dot'):
        return table_entries(request.learned_operand('table'), query_bL, key_bM)
    of_keys_bMHX = table_rows(request.learned_operand('keys'), key_bM)
    if mechanism.kind == 'dense':
        of_queries_bLHX = jax.nn.relu(request.query.astype(jnp.float32))
    else:
        of_queries_bLHX = table_rows(request.learned_operand('queries'), query_bL)
    batch = max(of_queries_bLHX.shape[0], of_keys_bMHX.shape[0])
    both = (jnp.broadcast_to(x, (batch, *x.shape[1:])) for x in (of_queries_bLHX, of_keys_bMHX))
    return jnp.einsum('bLHX,bMHX->bHLM', *both, precision=HIGHEST)


def table_rows(table_HNX: Float[Array, 'H N X'], positions_bL: Int[Numbers, 'b L']) -> Float[Array, 'b L H X']:
    """Returns the rows of a learned table at these positions, for each head; NaN for positions beyond the table."""
    found_bLHX = jnp.moveaxis(jnp.take(table_HNX, positions_bL, axis=1, mode='clip'), 0, 2)
    is_inside_bL = is_in_table(jnp.asarray(positions_bL), table_HNX.shape[1])
    return jnp.where(is_inside_bL[..., None, None], found_bLHX, jnp.nan)


def table_entries(
    table_HNN: Float[Array, 'H N N'], query_bL: Int[Numbers, '#B L'], key_bM: Int[Numbers, '#B M']
) -> Float[Array, 'b H L M']:
    """Returns the entries of a learned table for all pairs of query and key positions;
    NaN for positions beyond the table.
    """
    query_bL1, key_b1M = jnp.asarray(query_bL)[:, :, None], jnp.asarray(key_bM)[:, None, :]
    found_HbLM = table_HNN.at[:, query_bL1, key_b1M].get(mode='clip')
    is_inside_bLM = is_in_table(query_bL1, table_HNN.shape[1]) & is_in_table(key_b1M, table_HNN.shape[1])
    return jnp.where(is_inside_bLM[:, None], jnp.moveaxis(found_HbLM, 0, 1), jnp.nan)


def is_in_table(positions: Int[Array, '...'], length: int) -> Bool[Array, '...']:
    """Returns whether positions are among 0, 1, ..., `length` - 1, the positions of a learned table."""
    return (positions >= 0) & (positions < length)


def multiply_adds(softmax: Implementation, mechanism: Synthesizer, length: int, heads: int, width: int) -> int:
    """Returns the synthesizer's multiply-adds for one row, which equal those
    of softmax attention over the same pattern.
    """
    return softmax.multiply_adds(
        equivalent_softmax(softmax, mechanism), length, heads, mechanism.softmax_head_width(width)
    )


def equivalent_softmax(softmax: Implementation, mechanism: Synthesizer) -> Mechanism:
    """Returns softmax attention over the synthesizer's pattern."""
    make: Any = softmax.kind
    return make(mechanism.pattern)
