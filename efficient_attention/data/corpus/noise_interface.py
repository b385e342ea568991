"""Defines the interface of all kinds of noise; a noise turns a text into a noised source and its target."""

import abc
from typing import NamedTuple

import numpy as np


class TextToNoise(NamedTuple):
    """A text to which noise will be added: its tokens and where its sentences start."""

    tokens: np.ndarray  # int32 [T]
    sentence_starts: np.ndarray  # int64: position of each sentence's first token, in rising order from 0


class Noise(abc.ABC):
    """Base class for a kind of noise with its settings; can be pickled.

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
        """Returns the source and the target of a text, int32, without begin and end tokens; all random numbers come
        from `rng`."""
