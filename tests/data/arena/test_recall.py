"""Recall: the query's value stands behind its key, once, as often far away as near."""

import hashlib

import numpy as np
import pytest

from efficient_attention.data.arena.arena_row import SPLITS
from efficient_attention.data.arena.recall import KEYS, VALUES, recall_row

FIRST = {  # SHA-256 of the first hundred rows of each split
    'train': '359adad9befb9d6a86865d905621e5f6890fc24e869bc7aacb83c7ce3f9d5870',
    'dev': '46d9ad3af21efe83e716d72d72ac9b0a5a562fecdda5d564c022e05cb81771e0',
    'test': 'c5d30517eb41d7015f1535927c8a431fd8c0cca6017f31d355d15127264e6d48',
}


@pytest.mark.parametrize('split', SPLITS)
def test_rows(split: str):
    rows = [recall_row(0, split, index, 64, 8) for index in range(100)]
    for row in rows:
        [text] = row.texts
        assert text.shape == (64,)
        [place] = np.flatnonzero(text[1:] == text[0]) + 1
        assert text[0] < KEYS and text[place + 1] == KEYS + row.label
        keys = text[1:][text[1:] < KEYS]
        assert len(keys) == len(set(keys)) == 8
        assert ((text >= KEYS) & (text < KEYS + VALUES)).sum() == 8
    content = b''.join(row.texts[0].astype('<u2').tobytes() + bytes([row.label]) for row in rows)
    assert hashlib.sha256(content).hexdigest() == FIRST[split]


def test_what_is_asked_for_may_be_anywhere_and_have_any_value():
    rows = [recall_row(0, 'train', index, 64, 8) for index in range(600)]
    places = np.array([int(np.flatnonzero(row.texts[0][1:] == row.texts[0][0])[0]) for row in rows])
    assert abs(places.mean() - 31) < 3 * 18 / np.sqrt(600)  # about uniform over 62 places
    counts = np.bincount([row.label for row in rows], minlength=VALUES)
    deviations = (counts - 600 / VALUES) / np.sqrt(600 / VALUES * (1 - 1 / VALUES))
    assert (np.abs(deviations) < 3).all()


def test_no_row_is_of_two_splits():
    rows = {split: {recall_row(0, split, index, 5, 1).texts[0].tobytes() for index in range(2000)} for split in SPLITS}
    assert all(len(found) > 1000 for found in rows.values())
    assert not any(rows[one] & rows[other] for one, other in (('train', 'dev'), ('train', 'test'), ('dev', 'test')))


def test_pairs_may_fill_the_row():
    row = recall_row(0, 'train', 0, 9, 4)
    assert (row.texts[0][1::2] < KEYS).all() and (row.texts[0][2::2] >= KEYS).all()
