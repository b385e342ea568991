"""Tests of a row of a text or of images: tokens, targets, padding, and segment numbers that never overflow."""

import numpy as np
import pytest

from efficient_attention.data.text.rows import TextRows, check_enough_targets
from efficient_attention.errors import InputError

START = np.zeros(1, np.int64)


def test_targets_are_the_next_tokens():
    row = TextRows(np.arange(20), 8, START).row(5)
    assert row['tokens'].tolist() == list(range(5, 13)) and row['targets'].tolist() == list(range(6, 14))


def test_a_row_beyond_the_text_or_its_stop_is_padding():
    rows = TextRows(np.arange(20), 8, START)
    for first, stop in [(19, None), (20, None), (100, None), (5, 5), (7, 5)]:
        assert not any(array.any() for array in rows.row(first, stop).values())
    row = rows.row(4, 7)
    assert row['targets'].tolist() == [5, 6, 7, 0, 0, 0, 0, 0] and row['weights'].sum() == 3


def test_all_but_the_first_id_of_a_text_are_targets_and_all_of_images():
    assert [TextRows(np.arange(size), 8, START).target_count for size in (0, 1, 2, 20)] == [0, 0, 1, 19]
    images = TextRows(np.arange(16), 8, np.array([0, 8]), start=99)
    assert images.target_count == 16 and images.row_start_multiple == 8
    row = images.row(8)
    assert row['tokens'].tolist() == [99, *range(8, 15)] and row['targets'].tolist() == list(range(8, 16))


def test_the_token_before_a_document_belongs_to_the_one_before():
    rows = TextRows(np.arange(20), 8, np.array([0, 4, 6]), cut_at_documents=True)
    assert rows.row(0)['segments'].tolist() == [1, 1, 1, 1, 2, 2, 3, 3]
    assert rows.row(5)['segments'].tolist() == [1, 2, 2, 2, 2, 2, 2, 2]


@pytest.mark.parametrize('cut', [True, False])
def test_segments_stay_positive_after_many_readings(cut):
    rows = TextRows(np.arange(20), 8, np.array([0, 4, 6]), cut_at_documents=cut)
    numbers = [rows.row(0, reading=reading)['segments'] for reading in (2**29 - 1, 2**29, 2**31 - 1, 2**31)]
    assert min(map(np.min, numbers)) >= 1
    assert not set(numbers[0]) & set(numbers[1]) and not set(numbers[2]) & set(numbers[3])


def test_less_than_one_row_is_refused():
    check_enough_targets(TextRows(np.arange(9), 8, START))
    with pytest.raises(InputError, match='the text to train on has 8 tokens; one segment of data.length 8 needs 9'):
        check_enough_targets(TextRows(np.arange(8), 8, START))
