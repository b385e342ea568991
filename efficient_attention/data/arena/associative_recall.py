"""Generates rows of associative recall: the query is a key, the row contains key-value pairs and filler words, and the
class is the value of the queried key.

This task is specific to this project. It follows the associative recall of Arora et al. 2023 (Zoology, arXiv
2312.04927), with one query and pairs anywhere in the row. So the answer is as often far away as near, while Long Range
Arena's tasks reward near context. The query is the first word, so a head on the first token can read the answer. A pair
is one word, so lookup is the only skill to learn. If the value follows its key as a separate word, as in Arora et al.,
small models only learn which values a row has (docs/arena.md).
"""

import dataclasses

import numpy as np

from efficient_attention.data.arena.dataset_interface import (
    ArenaRow,
    DatasetOptions,
    GeneratedDataset,
    is_hashed_to_split,
    row_random_generator,
)
from efficient_attention.data.tokenizers.fixed_vocabulary import RECALL_FILLERS, RECALL_KEYS, RECALL_VALUES

# index of the first query word; the pair of key k and value v is the word k * RECALL_VALUES + v
QUERIES = RECALL_KEYS * RECALL_VALUES
FILLER = QUERIES + RECALL_KEYS  # index of the first filler word


def associative_recall_row(
    seed: int, split: str, index: int, length: int, pairs: int, *, keys: int, values: int
) -> ArenaRow:
    """Returns a generated row: the query word, then `length` - 1 words with `pairs` key-value pairs among fillers; the
    class is the value of the queried key.

    Keys and values are the first `keys` and `values` of the vocabulary; no key occurs twice in a row.
    """
    rng = row_random_generator(seed, split, index)
    while True:
        text, label = _random_recall_row(rng, length, pairs, keys, values)
        if is_hashed_to_split(text, split):
            return ArenaRow((text,), label)


def _random_recall_row(
    rng: np.random.Generator, length: int, pairs: int, keys: int, values: int
) -> tuple[np.ndarray, int]:
    text = (FILLER + rng.integers(0, RECALL_FILLERS, length)).astype(np.uint16)
    drawn_keys, drawn_values = rng.choice(keys, pairs, replace=False), rng.integers(0, values, pairs)
    text[1 + rng.choice(length - 1, pairs, replace=False)] = drawn_keys * RECALL_VALUES + drawn_values
    asked = int(rng.integers(pairs))
    text[0] = QUERIES + drawn_keys[asked]
    return text, int(drawn_values[asked])


def value_counts_in_row(text: np.ndarray) -> np.ndarray:
    """Returns how often each value occurs in the key-value pairs of a row: counts [RECALL_VALUES], from the word
    indices of the row."""
    return np.bincount(text[text < QUERIES] % RECALL_VALUES, minlength=RECALL_VALUES)


@dataclasses.dataclass(frozen=True)
class AssociativeRecall(GeneratedDataset):
    """Generated rows of associative recall, all with the same number of words and of key-value pairs."""

    kind = 'recall'
    vocabulary = 'recall'
    length: int
    pairs: int
    keys: int
    values: int

    @property
    def labels(self) -> tuple[str, ...]:
        """Returns the class names v0, v1, ..., one per value."""
        return tuple(f'v{number}' for number in range(self.values))

    def row(self, split: str, index: int) -> ArenaRow:
        """Returns the row with number `index` of a split."""
        return associative_recall_row(
            self.seed, split, index, self.length, self.pairs, keys=self.keys, values=self.values
        )


def associative_recall_dataset(options: DatasetOptions) -> AssociativeRecall:
    """Returns the recall dataset with these options; raises InputError if an option is missing or out of range."""
    count, seed = options.integer_option('rows', 1), options.integer_option('seed', 0, 0)
    length, pairs = options.integer_option('length', 3), options.integer_option('pairs', 1)
    keys, values = options.integer_option('keys', 1, RECALL_KEYS), options.integer_option('values', 2, RECALL_VALUES)
    for name, number, most in (('keys', keys, RECALL_KEYS), ('values', values, RECALL_VALUES)):
        if number > most:
            raise options.option_error(f'{name} must be at most {most}')
    if pairs > min(keys, length - 2):  # If rows had no filler word, a split could have no possible row.
        raise options.option_error(
            f'pairs must be at most {keys}, the keys, and {length - 2}, the words without query and filler'
        )
    return AssociativeRecall(options.text, count, seed, length, pairs, keys, values)
