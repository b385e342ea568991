"""Groups rows of similar length into batches; each batch is padded to one of a few lengths, the buckets.

The rows in the batch of a training step are a function of only (seed, step). Few lengths mean few compiled programs,
and similar lengths mean little padding.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from efficient_attention.data.batching.epoch_cache import TwoEpochCache
from efficient_attention.data.batching.mixture import Mixture
from efficient_attention.data.batching.random_streams import RandomStreamId, random_stream
from efficient_attention.errors import InputError

SORTED_TOGETHER = 32  # Rows of 32 batches are sorted by length together. A larger number pads less and mixes rows less.


@dataclasses.dataclass(frozen=True)
class LengthBucketedBatches:
    """Groups rows of different lengths into batches; each batch is an array of row numbers.

    Attributes:
        lengths: tokens of each row.
        buckets: lengths to which rows are padded; a row longer than the last bucket is padded to `length`.
        length: most tokens of a row.
        batch_size: rows of the global batch.
        seed: seed of the order of the rows.
        mixture: the rows of each epoch; None = every row once.
    """

    lengths: np.ndarray
    buckets: Sequence[int]
    length: int
    batch_size: int
    seed: int = 0
    mixture: Mixture | None = None
    plans: TwoEpochCache = dataclasses.field(default_factory=TwoEpochCache, repr=False, compare=False)

    @property
    def rows_per_epoch(self) -> int:
        """Returns the number of rows in an epoch."""
        return self.mixture.rows_per_epoch if self.mixture else len(self.lengths)

    @property
    def steps_per_epoch(self) -> int:
        """Returns the number of batches in an epoch."""
        return -(-self.rows_per_epoch // self.batch_size)

    def rows_of_step(self, step: int) -> np.ndarray:
        """Returns the row numbers of a training step; the last batch of an epoch may have fewer rows than the batch
        size.

        Raises:
            InputError: there are no rows.
        """
        if not len(self.lengths):
            raise InputError('there is no row to train on')
        epoch, turn = divmod(step, self.steps_per_epoch)
        return self.epoch_plan(epoch)[turn]

    def longest_first_batches(self, *, is_row_alone: bool = False) -> Iterator[np.ndarray]:
        """Yields batches that contain every row once, the longest rows first.

        With `is_row_alone`, rows of a batch have the same bucket, so each is padded only to its own bucket. Some
        batches are smaller then.
        """
        order = np.argsort(-self.lengths, kind='stable')
        groups = [order]
        if is_row_alone:
            buckets = np.array([self.bucket_of_rows(order[number : number + 1]) for number in range(len(order))])
            groups = np.split(order, np.flatnonzero(np.diff(buckets)) + 1)
        for group in groups:
            for start in range(0, len(group), self.batch_size):
                yield group[start : start + self.batch_size]

    def epoch_plan(self, epoch: int) -> list[np.ndarray]:
        """Returns the batches of an epoch, each as an array of row numbers."""
        return self.plans.get(epoch, self._make_epoch_plan)

    def _make_epoch_plan(self, epoch: int) -> list[np.ndarray]:
        rng = random_stream(self.seed, RandomStreamId.EXAMPLE_BATCHES, epoch)
        order = rng.permutation(self.rows_per_epoch)
        order = self.mixture.epoch_rows(epoch)[order] if self.mixture else order
        batches = []
        for start in range(0, len(order), SORTED_TOGETHER * self.batch_size):
            group = order[start : start + SORTED_TOGETHER * self.batch_size]
            group = group[np.argsort(self.lengths[group], kind='stable')]
            batches += [group[first : first + self.batch_size] for first in range(0, len(group), self.batch_size)]
        return [batches[turn] for turn in rng.permutation(len(batches))]

    def bucket_of_rows(self, rows: np.ndarray) -> int:
        """Returns the padded length for a batch of these rows."""
        return self.bucket_for_length(int(self.lengths[rows].max()))

    def bucket_for_length(self, longest: int) -> int:
        """Returns the padded length for a batch whose longest row has `longest` tokens."""
        return next((bucket for bucket in self.buckets if longest <= bucket <= self.length), self.length)

    def mean_bucket(self) -> float:
        """Returns the mean padded length of the batches of the first epoch."""
        return float(np.mean([self.bucket_of_rows(rows) for rows in self.epoch_plan(0)]))
