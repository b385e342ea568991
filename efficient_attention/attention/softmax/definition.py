"""Defines `Softmax`, softmax attention over a pattern, and counts its multiply-adds."""

import dataclasses
import functools

import numpy as np
from jax import Array
from jaxtyping import Bool

from efficient_attention.attention.dense_attention import masked_softmax
from efficient_attention.attention.logits.definition import PatternAttention, Weights
from efficient_attention.attention.mechanism import Capabilities
from efficient_attention.attention.patterns import Pattern, head_patterns
from efficient_attention.attention.patterns.tile_table import order_by_residue, split_into_disjoint_patterns, tile_table
from efficient_attention.errors import require_at_least


@dataclasses.dataclass(frozen=True)
class Softmax(PatternAttention):
    """Softmax attention softmax(q k^T / sqrt(K)) v over the query-key pairs that `pattern` allows.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1.

    Args:
        pattern: which query reads which key.
        tile: S, the number of positions of a tile of scores on the backend `blocked`; results do not depend on it.
    """

    name = 'softmax'
    capabilities = Capabilities(has_logits=True, has_backends=True, merges=True, splits_tokens=True)

    tile: int = dataclasses.field(default=64, repr=False)

    def __post_init__(self) -> None:
        PatternAttention.__post_init__(self)
        require_at_least(1, 'softmax tile', self.tile)

    def causal_alternative_text(self, text: str) -> str:
        """Returns the pattern's config text made causal, 'causal & (text)', as advice in error messages."""
        return f"'causal & ({text})', which keeps the pairs that look back"

    def normalise_logits(self, logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M']) -> Weights:
        """Returns the softmax of the logits over the allowed keys, and the log-sum-exp."""
        return masked_softmax(logits_BHLM, allowed_bhLM)


def multiply_adds(mechanism: Softmax, length: int, heads: int, width: int) -> int:
    """Returns softmax attention's multiply-adds for one row: two products over every query-key pair
    in the tiles that the pattern keeps.
    """
    patterns = head_patterns(mechanism.pattern.for_key_count(length), heads)
    pairs = sum(count_tile_pairs(pattern, length, length, mechanism.tile) for pattern in patterns)
    return 2 * width * pairs * (heads // len(patterns))


@functools.lru_cache(maxsize=256)
def count_tile_pairs(pattern: Pattern, queries: int, keys: int, size: int) -> int:
    """Returns how many query-key pairs lie in the tiles of `size` x `size` positions
    that the pattern of one head keeps.

    Queries and keys both have the positions 0, 1, ...
    """
    positions = [np.arange(number) for number in (queries, keys)]
    sizes = [np.diff(np.append(np.arange(0, len(numbers), size), len(numbers))) for numbers in positions]
    total = 0
    for pass_pattern, order in split_into_disjoint_patterns(pattern):
        queries_L, keys_M = (numbers[order_by_residue(numbers, order)] for numbers in positions)
        table = tile_table(pass_pattern, queries_L, keys_M, size, order)
        total += int((np.repeat(sizes[0], table.key_tile_counts) * sizes[1][table.keys]).sum())
    return total
