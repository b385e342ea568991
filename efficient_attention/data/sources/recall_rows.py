"""Generates rows of key-value pairs whose mapping is new in every row, to measure in-context learning.

A row is a text such as 's3 s40 s17 s8 s3 s40': each key is followed by its value. A model that has seen the key earlier
in the row can predict the value, and no other row helps. The task follows the associative recall of Arora et al. 2023
(Zoology, arXiv 2312.04927) and the repeated random tokens of Olsson et al. 2022 (arXiv 2209.11895). Every symbol can be
a value, but only the first half of the symbols are keys, so the other half can be new keys in a test.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from efficient_attention.errors import InputError

FORM = re.compile(r'(?P<rows>\d{1,9}):(?P<pairs>\d{1,5}):(?P<fewest>\d{1,5})-(?P<most>\d{1,5})(:(?P<seed>\d{1,9}))?')
SYMBOLS = 64
KEYS = range(SYMBOLS // 2)  # symbols that are keys in training
NEW_KEYS = range(SYMBOLS // 2, SYMBOLS)  # symbols that training has only as values


class RecallRows(NamedTuple):
    """`rows` generated rows of `pairs` pairs; the number of keys of a row is drawn from `fewest` to `most`."""

    rows: int
    pairs: int
    fewest: int
    most: int
    seed: int = 0


def parse_recall_rows(text: str) -> RecallRows:
    """Parses '<rows>:<pairs>:<fewest keys>-<most keys>[:<seed>]'; raises InputError if the form or a
    number is not allowed."""
    match = FORM.fullmatch(text)
    if match is None:
        raise InputError('the form is recall:<rows>:<pairs>:<fewest keys>-<most keys>[:<seed>]')
    found = RecallRows(*(int(match[name] or 0) for name in RecallRows._fields))
    if not (found.rows and found.pairs and 1 <= found.fewest <= found.most <= len(KEYS)):
        raise InputError(f'rows and pairs must be at least 1, and 1 <= fewest <= most <= {len(KEYS)}')
    return found


def recall_row(wanted: RecallRows, number: int, keys: range = KEYS) -> np.ndarray:
    """Returns the symbols of row `number`: key, value, key, value, ..., int64 [2 x pairs].

    The row's keys are drawn from `keys`, and the value of each key from all symbols that are no key of this row. Each
    pair has a key drawn anew from the keys of the row.
    """
    rng = np.random.default_rng((wanted.seed, number))
    row_keys = rng.choice(keys, rng.integers(wanted.fewest, wanted.most + 1), replace=False)
    row_values = rng.choice(np.setdiff1d(np.arange(SYMBOLS), row_keys), len(row_keys))
    drawn = rng.integers(len(row_keys), size=wanted.pairs)
    return np.stack([row_keys[drawn], row_values[drawn]], axis=1).reshape(-1)


def recall_documents(wanted: RecallRows) -> Iterator[str]:
    """Yields each row as a text of one line."""
    for number in range(wanted.rows):
        yield ' '.join(symbol_word(symbol) for symbol in recall_row(wanted, number).tolist())


def symbol_word(symbol: int) -> str:
    """Returns the word of a symbol, such as 's3'."""
    return f's{symbol}'
