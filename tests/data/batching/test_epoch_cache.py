"""Tests that the cache keeps the values of the last two epochs, and that a pickled copy is empty."""

import pickle

from efficient_attention.data.batching.epoch_cache import TwoEpochCache


def test_last_two_keeps_two():
    made = []
    kept = TwoEpochCache()
    for epoch in (0, 1, 0, 1, 2, 1, 0):
        kept.get(epoch, made.append)
    assert made == [0, 1, 2, 0]


def test_a_copy_is_empty():
    kept: TwoEpochCache[int] = TwoEpochCache()
    kept.get(0, int)
    made = []
    pickle.loads(pickle.dumps(kept)).get(0, made.append)
    assert made == [0]
