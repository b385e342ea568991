"""Defines the arguments of decoding: `CacheSpec` (a mechanism and its sizes), `NewTokens` and `LogitTerms`."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jax import Array

from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.relative import Relative
from efficient_attention.errors import InputError


@dataclasses.dataclass(frozen=True)
class CacheSpec:
    """The static arguments of decoding: a mechanism, its head counts and the largest length;
    all calls for one cache share them.

    Args:
        mechanism: causal, for one layer.
        heads: H.
        key_heads: G, a divisor of H.
        width: K.
        max_length: positions are below it, unless the cache is a ring of slots or of sums. Patterns that depend on the
            number of keys use `max_length` as that number. Results then equal the parallel result over `max_length`
            tokens.

    Raises:
        InputError: the mechanism cannot decode token by token.
    """

    mechanism: Mechanism
    heads: int
    key_heads: int
    width: int
    max_length: int

    def __post_init__(self) -> None:
        self.mechanism.check_decoding()
        if self.max_length < 1:
            raise InputError(f'max_length is {self.max_length}; it must be at least 1')


class NewTokens(NamedTuple):
    """The n >= 1 new tokens of each row in a decoding step: query [B, n, H, K], key and value [B, n, G, K],
    positions and segments int [B, n].

    Positions are positions in the row, as the pattern compares them. They rise within and between calls, except at
    padding, whose segment is 0.
    """

    query: Array
    key: Array
    value: Array
    positions: Array
    segments: Array


Bias = Callable[[Any, Any], Any]  # a bias as a function of query positions and key positions


class LogitTerms(NamedTuple):
    """Optional terms of the attention logits of new tokens besides q k / sqrt(K):
    bias, relative term, additive scores, learned arrays.

    Args:
        bias: added to the logits: a function of query and key positions, as in `attend`.
        relative: also added to the logits, by distance: the queries of the new tokens, and the table, as in `attend`.
        additive: the vector of additive scores, which replace the products q k / sqrt(K).
        learned: the arrays that the mechanism learns, as in `attend`.
    """

    bias: Bias | None = None
    relative: Relative | None = None
    additive: Array | None = None
    learned: Mapping[str, Array] | None = None
