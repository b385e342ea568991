"""The interface of all kinds of noise, which turn a text from a corpus into a noised source and its target."""

import abc
from typing import NamedTuple

import numpy as np


class TextToNoise(NamedTuple):
    """A text before noise is added."""

    tokens: np.ndarray  # int32 [T]
    sentence_starts: np.ndarray  # int64, positions of the sentences' first tokens, rising from 0


class Noise(abc.ABC):
    """A kind of noise with its settings; picklable.

    Attributes:
        tokens: most tokens of a text.
        lengths: most tokens of a source and of a target, without begin and end tokens.
        crosses_documents: whether a text may contain the end of one document and the start of the next. Then all texts
            have `tokens` tokens. Otherwise a text is as many whole sentences of one document as fit.
    """

    tokens: int
    lengths: tuple[int, int]
    crosses_documents: bool

    @abc.abstractmethod
    def __call__(self, text: TextToNoise, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Returns source and target, int32, without begin and end tokens; all random numbers come from `rng`."""
