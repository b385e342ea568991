"""Tests of how a generated row gets its split, and of the random numbers of each row."""

import numpy as np

from efficient_attention.data.arena.dataset_interface import SPLITS, is_hashed_to_split, row_random_generator


def test_a_row_is_of_one_split_alone_and_three_quarters_are_trained_on():
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 99, 12).astype(np.uint16) for _ in range(2000)]
    found = np.array([[is_hashed_to_split(row, split) for split in SPLITS] for row in rows])
    assert (found.sum(axis=1) == 1).all()
    share, deviation = found[:, 0].mean(), np.sqrt(0.75 * 0.25 / len(rows))
    assert abs(share - 0.75) < 4 * deviation
    assert is_hashed_to_split(rows[0].astype(np.int64), 'train') == is_hashed_to_split(
        rows[0], 'train'
    )  # the array's dtype does not matter


def test_each_row_has_numbers_of_its_own():
    keys = [(seed, split, index) for seed in (0, 1) for split in SPLITS for index in (0, 1)]
    assert len({row_random_generator(*key).random() for key in keys}) == len(keys)
    assert row_random_generator(3, 'dev', 7).random() == row_random_generator(3, 'dev', 7).random()
