"""Tests of associative recall: the label is the value of the query's only pair, which is as often near as far away."""

import hashlib

import numpy as np
import pytest

from efficient_attention.data.arena.associative_recall import FILLER, QUERIES, associative_recall_row
from efficient_attention.data.arena.dataset_interface import SPLITS
from efficient_attention.data.tokenizers.fixed_vocabulary import RECALL_VALUES, WORDS

FIRST = {  # SHA-256 of the first hundred rows of each split
    'train': 'ec3d177c9fedb81e66c7fa5c6b7b5a61836e75ccadf6c9920a12075bd18498ea',
    'dev': 'f877f0b64abaec9482da6ca84913a816a1cb47575d7d809dc64d5ddb697d72e1',
    'test': '5162c14531b30f7adcc13e6a85d1ec1c8670d0bf5b8add23f0bf4ee584f43338',
}


@pytest.mark.parametrize('split', SPLITS)
def test_rows(split: str):
    rows = [associative_recall_row(0, split, index, 64, 8, keys=16, values=4) for index in range(100)]
    for row in rows:
        [text] = row.texts
        query, *words = (WORDS['recall'][word] for word in text)
        assert len(words) == 63 and query in [f'k{key}' for key in range(16)]
        pairs = dict(word.split('=') for word in words if '=' in word)
        assert len(pairs) == 8 and sum('=' in word for word in words) == 8
        assert pairs[query] == f'v{row.label}' and row.label < 4
        assert all(word in WORDS['recall'][FILLER:] for word in words if '=' not in word)
    content = b''.join(row.texts[0].astype('<u2').tobytes() + bytes([row.label]) for row in rows)
    assert hashlib.sha256(content).hexdigest() == FIRST[split]


def test_what_is_asked_for_may_be_anywhere_and_have_any_value():
    rows = [associative_recall_row(0, 'train', index, 64, 8, keys=16, values=4) for index in range(600)]
    keys = [row.texts[0][0] - QUERIES for row in rows]
    places = [int(np.flatnonzero(row.texts[0] // RECALL_VALUES == key)[0]) for row, key in zip(rows, keys, strict=True)]
    assert min(places) == 1 and max(places) == 63
    assert abs(np.mean(places) - 32) < 3 * 18.2 / np.sqrt(600)  # The pair's position is uniform over 63 positions.
    counts = np.bincount([row.label for row in rows], minlength=4)
    deviations = (counts - 600 / 4) / np.sqrt(600 / 4 * (1 - 1 / 4))
    assert (np.abs(deviations) < 3).all()


def test_no_row_is_of_two_splits():
    def texts(split: str) -> set[bytes]:
        return {
            associative_recall_row(0, split, index, 4, 1, keys=16, values=4).texts[0].tobytes() for index in range(500)
        }

    rows = {split: texts(split) for split in SPLITS}
    assert all(len(found) > 400 for found in rows.values())
    assert not any(rows[one] & rows[other] for one, other in (('train', 'dev'), ('train', 'test'), ('dev', 'test')))
