"""The arguments of decoding: a mechanism with its sizes, and the new tokens that go on with a text."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jax import Array

from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.relative import Relative
from efficient_attention.errors import InputError


@dataclasses.dataclass(frozen=True)
class CacheSpec:
    """What is decoded: static, and the same in all calls for one state.

    Args:
        mechanism: causal, of one layer.
        heads: H.
        key_heads: G, a divisor of H.
        width: K.
        max_length: positions are below it, unless the cache is a ring of slots or of sums; patterns that depend on the
            number of keys take it for that, so they equal the parallel result over `max_length` tokens.

    Raises:
        InputError: the mechanism cannot be decoded token by token.
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
    """n >= 1 new tokens of each row: query [B, n, H, K], key and value [B, n, G, K], positions and segments int [B, n].

    Positions are what the pattern sees, places in the row, rising within and between calls but for padding, whose
    segment is 0.
    """

    query: Array
    key: Array
    value: Array
    positions: Array
    segments: Array


Bias = Callable[[Any, Any], Any]  # from positions of queries and keys


class LogitTerms(NamedTuple):
    """What the logits of new tokens are beside q k / sqrt(K), each None where that is all.

    Args:
        bias: added, a function of positions of queries and keys, as in `attend`.
        relative: also added, by distance: the queries of the new tokens, and the table, as in `attend`.
        additive: the vector of additive scores, in place of the products.
        learned: the arrays that the mechanism learns, as in `attend`.
    """

    bias: Bias | None = None
    relative: Relative | None = None
    additive: Array | None = None
    learned: Mapping[str, Array] | None = None
