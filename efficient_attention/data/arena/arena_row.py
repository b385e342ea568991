"""A row of a long-range task, the splits, and the random numbers that a generated row comes from."""

import hashlib
from typing import NamedTuple

import numpy as np

from efficient_attention.data.random_streams import Stream, random_stream

SPLITS = ('train', 'dev', 'test')
SHARES = 8  # of all rows that there are: the last two are dev's and test's, the others train's


class ArenaRow(NamedTuple):
    """A row's texts, one or two, each as numbers of words of a vocabulary, uint16 [l]; and the number of its class."""

    texts: tuple[np.ndarray, ...]
    label: int


def row_stream(seed: int, split: str, index: int) -> np.random.Generator:
    """The random numbers of one row."""
    return random_stream(seed, Stream.ARENA_ROW, SPLITS.index(split), index)


def is_of_split(text: np.ndarray, split: str) -> bool:
    """Whether a generated row may come in this split: by a hash of it, so that no two splits share a row."""
    share = hashlib.blake2b(text.astype('<u2').tobytes(), digest_size=1).digest()[0] % SHARES
    held_out = {'dev': SHARES - 2, 'test': SHARES - 1}
    return share == held_out[split] if split in held_out else share < SHARES - 2
