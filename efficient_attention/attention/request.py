"""One checked attention call, as the backends receive it."""

import dataclasses
from typing import Any

import numpy as np
from jax import Array

from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.relative import Relative

Positions = Array | np.ndarray


@dataclasses.dataclass(frozen=True)
class Request:
    """Arguments of `attend` after all checks, with positions filled in.

    Shapes: query [B, L, H, K], key and value [B, M, G, K] with H a multiple of G, bias broadcastable to [B, H, L, M]
    or a function of positions, segments int [B, L] and [B, M] (both or neither), positions int [1 or B, L] and
    [1 or B, M]: NumPy arrays where they are known before the program runs (so also by default), else JAX arrays.
    """

    query: Array
    key: Array
    value: Array
    mechanism: Mechanism
    bias: Any
    query_segments: Array | None
    key_segments: Array | None
    query_positions: Positions
    key_positions: Positions
    dropout_rate: float
    rng: Array | None
    dropout_rng: Array | None
    return_lse: bool
    relative: Relative | None = None

    @property
    def has_default_positions(self) -> bool:
        """Whether queries and keys are numbered 0, 1, ... as far as can be known before the program runs."""
        return all(
            isinstance(positions, np.ndarray) and np.array_equal(positions, np.arange(positions.shape[1])[None])
            for positions in (self.query_positions, self.key_positions)
        )
