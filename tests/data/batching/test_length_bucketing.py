"""Tests of batches by length: an epoch has every row once, and a batch has rows of similar length from one bucket."""

import numpy as np
import pytest

from efficient_attention.data.batching.length_bucketing import LengthBucketedBatches
from efficient_attention.errors import InputError

LENGTHS = np.random.default_rng(0).integers(1, 60, 203)


def batches(batch_size: int = 10) -> LengthBucketedBatches:
    return LengthBucketedBatches(LENGTHS, (8, 16, 32), 60, batch_size)


def test_an_epoch_has_every_row_once():
    plan = batches()
    assert plan.steps_per_epoch == 21
    for epoch in range(2):
        rows = np.concatenate([plan.rows_of_step(21 * epoch + step) for step in range(21)])
        assert sorted(rows) == list(range(203))
    assert not np.array_equal(plan.rows_of_step(0), plan.rows_of_step(21))
    assert sorted(np.concatenate(list(plan.longest_first_batches()))) == list(range(203))


def test_rows_of_similar_length_are_together():
    plan = batches()
    spread = np.mean([np.ptp(LENGTHS[rows]) for rows in plan.epoch_plan(0)])
    assert spread < 0.2 * np.ptp(LENGTHS)
    assert plan.mean_bucket() < 45 < np.mean([60 if LENGTHS[i : i + 10].max() > 32 else 32 for i in range(0, 200, 10)])


@pytest.mark.parametrize('longest, bucket', [(1, 8), (8, 8), (9, 16), (33, 60), (60, 60)])
def test_rows_are_padded_to_the_next_bucket(longest: int, bucket: int):
    assert batches().bucket_for_length(longest) == bucket


def test_rows_alone_share_a_batch_with_those_of_their_bucket():
    for rows in batches().longest_first_batches(is_row_alone=True):
        assert len({batches().bucket_for_length(n) for n in LENGTHS[rows]}) == 1


def test_no_rows_are_said():
    with pytest.raises(InputError, match='^there is no row to train on$'):
        LengthBucketedBatches(np.zeros(0, np.int64), (8,), 8, 4).rows_of_step(0)
