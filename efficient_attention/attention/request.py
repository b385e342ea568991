"""One checked attention call, as what computes it receives it."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from jax import Array

from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.relative import Relative

Numbers = Array | np.ndarray


class Sides(NamedTuple):
    """The same of the queries and of the keys: their segments, or their positions."""

    query: Any
    key: Any


class Dropout(NamedTuple):
    """Dropout of attention weights: the probability in (0, 1) to drop one, and a typed key or one for each row [B]."""

    rate: float
    rng: Any


@dataclasses.dataclass(frozen=True)
class Request:
    """Arguments of `attend`; `attend.complete` checks them and fills in what the caller left out.

    Afterwards there are positions, segments of both sides or None, and dropout only where its rate is above 0.
    Shapes: query [B, L, H, K], key and value [B, M, G, K] with H a multiple of G, bias broadcastable to [B, H, L, M]
    or a function of positions, segments int [B, L] and [B, M], positions int [1 or B, L] and [1 or B, M]: NumPy arrays
    where they are known before the program runs (so also by default), else JAX arrays.
    """

    query: Array
    key: Array
    value: Array
    mechanism: Mechanism
    segments: Sides | None
    positions: Sides
    dropout: Dropout | None
    bias: Any = None
    relative: Relative | None = None
    rng: Array | None = None
    return_lse: bool = False
    backend: str = 'auto'  # how a `Softmax` is executed

    @property
    def has_default_positions(self) -> bool:
        """Whether queries and keys are numbered 0, 1, ... as far as can be known before the program runs."""
        return all(
            isinstance(positions, np.ndarray) and np.array_equal(positions, np.arange(positions.shape[1])[None])
            for positions in self.positions
        )
