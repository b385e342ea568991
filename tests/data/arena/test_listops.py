"""Tests of ListOps rows: values by a second evaluator, lengths, labels and stored checksums."""

import hashlib
import statistics

import numpy as np
import pytest

from efficient_attention.data.arena import listops
from efficient_attention.data.arena.dataset_interface import SPLITS
from efficient_attention.data.arena.listops import evaluate_operator, listops_row
from efficient_attention.data.tokenizers.fixed_vocabulary import WORDS
from efficient_attention.errors import InputError

OPERATIONS = {
    '[MIN': min,
    '[MAX': max,
    '[MED': lambda values: int(statistics.median(values)),
    '[SM': lambda values: sum(values) % 10,
}
FIRST = {  # SHA-256 of the first hundred rows of each split, words and values, at Long Range Arena's lengths
    'train': '2690b16c14d6eee8e162b4d9be1c9f40c4b1eb2f7dbf04a5e183ede86ab4d607',
    'dev': '9a67854bc5f17ce915475664f337fad1129e6dbf3b326175995fcab8f0ab2205',
    'test': 'de2d5e9700add8cc296067d48738459cb71030a98d6340862931b9d22f170b91',
}


def rows_of(split: str, count: int, shortest: int = 500, longest: int = 2000) -> list:
    return [listops_row(0, split, index, shortest, longest) for index in range(count)]


def value_of_text(words: list[str]) -> tuple[int, int]:
    """Returns the value of a tree written as words, and its number of words. Recursive, unlike the generator."""
    if words[0] not in OPERATIONS:
        return int(words[0]), 1
    place, values = 1, []
    while words[place] != ']':
        value, used = value_of_text(words[place:])
        values.append(value)
        place += used
    assert 2 <= len(values) <= 10
    return OPERATIONS[words[0]](values), place + 1


def depth_of(words: list[str]) -> int:
    depths = np.cumsum([(word in OPERATIONS) - (word == ']') for word in words])
    return int(depths.max()) + 1  # The digits are one level below the deepest operator.


@pytest.mark.parametrize('split', SPLITS)
def test_rows_and_their_values(split: str):
    rows = rows_of(split, 100)
    for row in rows:
        words = [WORDS['listops'][word] for word in row.texts[0]]
        assert value_of_text(words) == (row.label, len(words))
        assert 500 < len(words) < 2000 and depth_of(words) <= 10
    content = b''.join(row.texts[0].astype('<u2').tobytes() + bytes([row.label]) for row in rows)
    assert hashlib.sha256(content).hexdigest() == FIRST[split]


def test_no_split_has_a_row_of_another():
    short = {split: {row.texts[0].tobytes() for row in rows_of(split, 300, 3, 9)} for split in SPLITS}
    assert all(short[a].isdisjoint(short[b]) for a in SPLITS for b in SPLITS if a < b)


def test_labels_have_the_shares_of_the_original():
    """Labels have the shares of 13,591 trees by another program with the same rules: 17.1 % are 0, 16.8 % are 9."""
    labels = [row.label for row in rows_of('train', 400)]
    for label, share in ((0, 0.171), (9, 0.168)):
        assert abs(labels.count(label) / 400 - share) < 3 * np.sqrt(share * (1 - share) / 400)
    assert set(labels) == set(range(10))


def test_half_of_the_median_is_rounded_down():
    assert [evaluate_operator(12, values) for values in ([1, 2], [9, 0, 4], [3, 4, 8, 9], [1, 1])] == [1, 4, 6, 1]


def test_lengths_that_hardly_any_tree_has(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(listops, 'MOST_TREES', 20)
    with pytest.raises(
        InputError, match="^listops: none of 20 trees of the split 'dev' has more than 900 and fewer than"
    ):
        listops_row(0, 'dev', 0, 900, 902)
