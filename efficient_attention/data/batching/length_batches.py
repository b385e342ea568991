"""Which rows of different lengths share a batch: rows of similar length together, padded to one of a few lengths.

Which rows make up the batch of a training step is a function of (seed, step) alone. A few lengths mean a few compiled
programs; rows of similar length mean little padding.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from efficient_attention.data.batching.epoch_cache import LastTwoEpochs
from efficient_attention.data.batching.mixture import Mixture
from efficient_attention.data.batching.random_streams import Stream, random_stream
from efficient_attention.errors import InputError

SORTED_TOGETHER = 32  # batches whose rows are sorted by length before they are cut: more pads less and mixes less


@dataclasses.dataclass(frozen=True)
class LengthBatches:
    """Batches of the numbers of rows.

    Attributes:
        lengths: tokens of each row.
        buckets: row lengths to pad to; a row longer than the last is padded to `length`.
        length: of the longest row allowed.
        batch_size: rows of the global batch.
        seed: of the order of the rows.
        mixture: which rows an epoch has; None = each once.
    """

    lengths: np.ndarray
    buckets: Sequence[int]
    length: int
    batch_size: int
    seed: int = 0
    mixture: Mixture | None = None
    plans: LastTwoEpochs = dataclasses.field(default_factory=LastTwoEpochs, repr=False, compare=False)

    @property
    def rows_per_epoch(self) -> int:
        """Rows of an epoch."""
        return self.mixture.rows_per_epoch if self.mixture else len(self.lengths)

    @property
    def steps_per_epoch(self) -> int:
        """Batches that hold the rows of an epoch."""
        return -(-self.rows_per_epoch // self.batch_size)

    def of_step(self, step: int) -> np.ndarray:
        """The rows of a training step; the last batch of those cut from an epoch may have fewer than `batch_size`.

        Raises:
            InputError: there is no row.
        """
        if not len(self.lengths):
            raise InputError('there is no row to train on')
        epoch, turn = divmod(step, self.steps_per_epoch)
        return self.plan(epoch)[turn]

    def in_order(self, *, is_row_alone: bool = False) -> Iterator[np.ndarray]:
        """Batches that hold every row once, the longest first.

        `is_row_alone` puts only rows of the same bucket together, so that none is padded beyond its own; some batches
        are then smaller.
        """
        order = np.argsort(-self.lengths, kind='stable')
        groups = [order]
        if is_row_alone:
            buckets = np.array([self.bucket(order[number : number + 1]) for number in range(len(order))])
            groups = np.split(order, np.flatnonzero(np.diff(buckets)) + 1)
        for group in groups:
            for start in range(0, len(group), self.batch_size):
                yield group[start : start + self.batch_size]

    def plan(self, epoch: int) -> list[np.ndarray]:
        """The rows of each batch of an epoch."""
        return self.plans.get(epoch, self._make_plan)

    def _make_plan(self, epoch: int) -> list[np.ndarray]:
        rng = random_stream(self.seed, Stream.EXAMPLE_BATCHES, epoch)
        order = rng.permutation(self.rows_per_epoch)
        order = self.mixture.rows(epoch)[order] if self.mixture else order
        batches = []
        for start in range(0, len(order), SORTED_TOGETHER * self.batch_size):
            group = order[start : start + SORTED_TOGETHER * self.batch_size]
            group = group[np.argsort(self.lengths[group], kind='stable')]
            batches += [group[first : first + self.batch_size] for first in range(0, len(group), self.batch_size)]
        return [batches[turn] for turn in rng.permutation(len(batches))]

    def bucket(self, rows: np.ndarray) -> int:
        """The length to which these rows are padded."""
        return self.bucket_of(int(self.lengths[rows].max()))

    def bucket_of(self, longest: int) -> int:
        """The length to which rows are padded of which the longest has so many tokens."""
        return next((bucket for bucket in self.buckets if longest <= bucket <= self.length), self.length)

    def mean_bucket(self) -> float:
        """The mean length to which the batches of an epoch are padded."""
        return float(np.mean([self.bucket(rows) for rows in self.plan(0)]))
