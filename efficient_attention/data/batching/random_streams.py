"""Random generators as functions of only (seed, stream, epoch, index), so a resumed run gets the same numbers."""

import enum

import numpy as np


class RandomStreamId(enum.IntEnum):
    """Independent streams of random numbers of one seed; the number of a stream never changes."""

    CORPUS_PLAN = 0  # the sentences in each row of an epoch
    CORPUS_ORDER = 1  # the order of the rows of an epoch
    CORPUS_ROW = 2  # masks and cuts of a row
    TEXT_WINDOW = 3  # the start of a row in continuous text
    EXAMPLE_BATCHES = 7  # which labelled examples share a batch
    MIXED_SETS = 10  # the order of the rows of each dataset in a mixture
    PACKED_PAIRS = 11  # the order in which pairs are packed into rows
    REPLACED_WORDS = 12  # the words of an example to replace, and their replacements
    ARENA_ROW = 13  # a generated row of Long Range Arena


def random_stream(seed: int, stream: RandomStreamId, epoch: int, index: int = 0) -> np.random.Generator:
    """Returns a generator that is a pure function of the arguments: Philox, key (seed, stream), counter (epoch, index).

    Streams never overlap: each has 2^64 blocks before it reaches the next one. Costs about 6 microseconds.
    """
    key = np.array([seed, stream], np.uint64)
    counter = np.array([0, index, epoch, 0], np.uint64)  # the lowest word counts the blocks of this stream
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
