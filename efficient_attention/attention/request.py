"""One checked attention call, as the backends receive it."""

import dataclasses

from jax import Array

from efficient_attention.attention.mechanisms import Mechanism


@dataclasses.dataclass(frozen=True)
class Request:
    """Arguments of `attend` after all checks, with positions filled in.

    Shapes: query [B, L, H, K], key and value [B, M, G, K] with H a multiple of G, bias broadcastable to [B, H, L, M],
    segments int [B, L] and [B, M] (both or neither), positions int [1 or B, L] and [1 or B, M].
    """

    query: Array
    key: Array
    value: Array
    mechanism: Mechanism
    bias: Array | None
    query_segments: Array | None
    key_segments: Array | None
    query_positions: Array
    key_positions: Array
    dropout_rate: float
    rng: Array | None
    return_lse: bool
