"""Tests that random numbers depend only on their key."""

import itertools

from efficient_attention.data.batching.random_streams import RandomStreamId, random_stream


def test_streams_are_pure_and_all_different():
    keys = list(itertools.product(range(3), RandomStreamId, range(3), range(3)))
    assert len({random_stream(*key).random() for key in keys}) == len(keys)
    key = (2**64 - 1, RandomStreamId.CORPUS_ROW, 2**40, 2**40)
    assert random_stream(*key).random() == random_stream(*key).random()


def test_numbers_of_streams_never_change():
    """The ids of random streams stay fixed: a new id would change the draws of every earlier run."""
    assert [stream.value for stream in RandomStreamId] == [0, 1, 2, 3, 7, 10, 11, 12, 13]
