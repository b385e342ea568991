"""Recall: pairs of a key and a value among filler, then one key again, whose value is the class.

A task of this project, after the associative recall of Arora et al. 2023 (Zoology, arXiv 2312.04927), with one query,
and the pairs anywhere in the row: what is asked for is as often far away as near, while Long Range Arena's tasks reward
what is near. The query is the first word, so that a vector of the first token can tell the answer.
"""

import numpy as np

from efficient_attention.data.arena.arena_row import ArenaRow, is_of_split, row_stream
from efficient_attention.data.tokenizers.fixed import RECALL_WORDS

KEYS, VALUES, FILLERS = RECALL_WORDS.values()


def recall_row(seed: int, split: str, index: int, length: int, pairs: int) -> ArenaRow:
    """Row number `index` of a split: the query, then `length` - 1 words with so many pairs; and the query's value."""
    rng = row_stream(seed, split, index)
    while True:
        text, label = _draw(rng, length, pairs)
        if is_of_split(text, split):
            return ArenaRow((text,), label)


def _draw(rng: np.random.Generator, length: int, pairs: int) -> tuple[np.ndarray, int]:
    text = (KEYS + VALUES + rng.integers(0, FILLERS, length)).astype(np.uint16)
    keys, values = rng.choice(KEYS, pairs, replace=False), rng.integers(0, VALUES, pairs)
    # Pairs are two words wide: places among what is left when each counts as one, moved on by the pairs before it.
    places = 1 + np.sort(rng.choice(length - 1 - pairs, pairs, replace=False)) + np.arange(pairs)
    text[places], text[places + 1] = keys, KEYS + values
    asked = int(rng.integers(pairs))
    text[0] = keys[asked]
    return text, int(values[asked])
