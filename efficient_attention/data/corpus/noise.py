"""What all kinds of noise have in common: a text of documents in, a source and a target out."""

import abc
from typing import NamedTuple

import numpy as np


class NoisedText(NamedTuple):
    """A text to be noised."""

    tokens: np.ndarray  # int32 [T]
    sentence_starts: np.ndarray  # int64, the places of its sentences' first tokens, rising from 0


class Noise(abc.ABC):
    """A noise with its settings; picklable.

    Attributes:
        tokens: the most tokens of a text.
        lengths: the most tokens of a source and of a target, ends not counted.
        crosses_documents: whether a text may have the end of one document and the beginning of the next; texts then
            all have `tokens` tokens. Else they are whole sentences of a document, as many as fit.
    """

    tokens: int
    lengths: tuple[int, int]
    crosses_documents: bool

    @abc.abstractmethod
    def __call__(self, text: NoisedText, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Source and target, int32, without their ends; all randomness is of `rng`."""
