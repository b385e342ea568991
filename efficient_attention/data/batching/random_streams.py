"""Makes random generators that depend on only (seed, stream, epoch, index), so that a resumed run gets the same
numbers."""

import enum

import numpy as np


class RandomStreamId(enum.IntEnum):
    """Numbers of independent random streams, one per purpose. These numbers never change, so that old runs can be
    resumed."""

    CORPUS_PLAN = 0  # which sentences each row of an epoch contains
    CORPUS_ORDER = 1  # the order of the rows in an epoch
    CORPUS_ROW = 2  # masks of a row, and the cuts of a sentence pair that is too long
    TEXT_WINDOW = 3  # where a row starts in continuous text
    EXAMPLE_BATCHES = 7  # which labelled examples are in the same batch
    MIXED_SETS = 10  # the order of the rows of each dataset in a mixture
    PACKED_PAIRS = 11  # the order in which text pairs are packed into rows
    REPLACED_WORDS = 12  # which words of an example are replaced, and their replacements
    ARENA_ROW = 13  # all random numbers of a generated row of Long Range Arena


def random_stream(seed: int, stream: RandomStreamId, epoch: int, index: int = 0) -> np.random.Generator:
    """Returns a random generator that is a pure function of its arguments: Philox with key (seed, stream) and counter
    (epoch, index).

    Streams never overlap: each has 2^64 blocks before it reaches the next one. Costs about 6 microseconds.
    """
    key = np.array([seed, stream], np.uint64)
    # Philox increases the lowest word of the counter by 1 per block of numbers.
    counter = np.array([0, index, epoch, 0], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
