"""The symbols that stand beside the text in sources and targets."""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Symbols:
    """Ids of padding, of a text's end, of what a decoder reads first, and of what every text begins with (-1: none)."""

    pad: int
    end: int
    start: int
    begin: int = -1

    @property
    def count(self) -> int:
        """How many tokens a source or a target has beside its text."""
        return 1 + (self.begin >= 0)

    def around(self, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
        """A text's tokens with its ends, int32."""
        return np.array([*([self.begin] if self.begin >= 0 else []), *tokens, self.end], np.int32)
