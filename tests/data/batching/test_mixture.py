"""Tests of mixtures of data sets: T5's two formulas, exact row counts, and no repeats before all rows were drawn."""

import numpy as np
import pytest

from efficient_attention.data.batching.length_bucketing import LengthBucketedBatches
from efficient_attention.data.batching.mixture import Mixture

SIZES = (1000, 40, 7)


def test_shares_are_those_of_the_paper():
    """Shares follow Raffel et al. 2019, section 3.5.2: r = min(e, K) / sum of min(e, K), then r^(1/T), normalised."""
    np.testing.assert_allclose(Mixture(SIZES).shares, np.array(SIZES) / 1047)
    limited = np.array([100, 40, 7]) / 147
    np.testing.assert_allclose(Mixture(SIZES, limit=100).shares, limited)
    roots = np.sqrt(limited)
    np.testing.assert_allclose(Mixture(SIZES, limit=100, temperature=2.0).shares, roots / roots.sum())
    np.testing.assert_allclose(Mixture(SIZES, temperature=1e6).shares, 1 / 3, rtol=1e-5)


@pytest.mark.parametrize('limit, temperature', [(100, 1.0), (100, 2.0), (0, 3.0), (3, 1.0), (0, 1e6)])
def test_an_epoch_holds_the_shares_and_a_set_comes_whole_before_it_repeats(limit: int, temperature: float):
    mixture = Mixture(SIZES, limit, temperature, seed=3)
    rows = [mixture.epoch_rows(epoch) for epoch in range(12)]
    firsts = np.cumsum((0, *SIZES))
    for number, (first, size) in enumerate(zip(firsts, SIZES, strict=False)):
        of_set = [epoch[(epoch >= first) & (epoch < first + size)] for epoch in rows]
        counts = {len(epoch) for epoch in of_set}
        assert counts == {mixture.rows_per_dataset[number]}
        assert abs(counts.pop() - mixture.shares[number] * mixture.rows_per_epoch) < 1
        read = np.concatenate(of_set)
        times = np.bincount(read - first, minlength=size)
        assert np.ptp(times) <= 1
        for turn in range(len(read) // size):
            assert len(set(read[turn * size : (turn + 1) * size])) == size
    assert rows[0].max() < sum(SIZES) and sum(map(len, rows)) == 12 * mixture.rows_per_epoch


def test_a_limit_gives_whole_sets_or_as_many_rows_as_the_limit():
    assert Mixture(SIZES, limit=100).rows_per_dataset.tolist() == [100, 40, 7]
    assert Mixture((10**6, 2), temperature=1.01).rows_per_dataset[1] >= 1
    assert Mixture((10**6, 1), limit=0, temperature=1.0).rows_per_dataset.tolist() == [10**6, 1]


def test_rows_follow_from_seed_and_epoch_alone():
    """An epoch's rows depend on seed and epoch only, not on earlier calls. So do the batches of a step."""
    mixture = Mixture(SIZES, 100, 2.0, seed=1)
    assert np.array_equal(mixture.epoch_rows(5), Mixture(SIZES, 100, 2.0, seed=1).epoch_rows(5))
    assert not np.array_equal(mixture.epoch_rows(5), Mixture(SIZES, 100, 2.0, seed=2).epoch_rows(5))
    lengths = np.random.default_rng(0).integers(1, 60, sum(SIZES))
    batches, others = (LengthBucketedBatches(lengths, (8, 16), 60, 8, 1, Mixture(SIZES, 100, 2.0, 1)) for _ in range(2))
    assert batches.steps_per_epoch == -(-mixture.rows_per_epoch // 8)
    whole = [batches.rows_of_step(step) for step in range(2 * batches.steps_per_epoch)]
    assert sorted(np.concatenate(whole[: batches.steps_per_epoch])) == sorted(mixture.epoch_rows(0))
    assert all(np.array_equal(others.rows_of_step(step), whole[step]) for step in (30, 3, 19))
