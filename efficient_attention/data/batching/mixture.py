"""Mixes several datasets by shares: selects the rows of an epoch as a function of only (seed, epoch).

Shares depend on dataset size, a size limit and a temperature (Raffel et al. 2019, arXiv 1910.10683, section 3.5.2).
There, each example is sampled by the shares. Here, an epoch has fixed numbers of rows, so the shares are exact.
"""

import dataclasses
import functools

import numpy as np

from efficient_attention.data.batching.random_streams import RandomStreamId, random_stream


@dataclasses.dataclass(frozen=True)
class Mixture:
    """A mixture of datasets, whose rows are numbered consecutively: first all rows of the first dataset, then of the
    second, and so on.

    An epoch has as many rows as all datasets together, where each dataset counts at most `limit` rows. Each epoch
    continues a dataset where the last epoch stopped. A new random order starts after all rows of the dataset were
    used, so no row repeats earlier.

    Attributes:
        sizes: rows of each dataset, at least 1.
        limit: most rows that count for a dataset; 0 = no limit.
        temperature: T of the shares r^(1/T), at least 1.
        seed: seed of the orders.
    """

    sizes: tuple[int, ...]
    limit: int = 0
    temperature: float = 1.0
    seed: int = 0

    @property
    def shares(self) -> np.ndarray:
        """Returns the share of each dataset among the rows of an epoch; the shares sum to 1."""
        rates = self.capped_dataset_sizes.astype(np.float64)
        rates = (rates / rates.sum()) ** (1.0 / self.temperature)
        return rates / rates.sum()

    @property
    def capped_dataset_sizes(self) -> np.ndarray:
        """Returns the number of rows of each dataset, capped at `limit`; the shares are computed from these numbers."""
        sizes = np.array(self.sizes, np.int64)
        return np.minimum(sizes, self.limit) if self.limit else sizes

    @functools.cached_property
    def rows_per_dataset(self) -> np.ndarray:
        """Returns the number of rows of each dataset in an epoch: its share, rounded to whole rows, and at least one
        row."""
        wanted = self.shares * self.capped_dataset_sizes.sum()
        rows = np.floor(wanted).astype(np.int64)
        missing = int(self.capped_dataset_sizes.sum() - rows.sum())
        rows[np.argsort(rows - wanted, kind='stable')[:missing]] += 1
        return np.maximum(rows, 1)

    @property
    def rows_per_epoch(self) -> int:
        """Returns the number of rows in an epoch, over all datasets."""
        return int(self.rows_per_dataset.sum())

    def epoch_rows(self, epoch: int) -> np.ndarray:
        """Returns the row numbers of an epoch, dataset after dataset; rows of a small dataset may repeat."""
        firsts = np.cumsum((0, *self.sizes[:-1]))
        return np.concatenate(
            [first + self.epoch_rows_of_dataset(number, epoch) for number, first in enumerate(firsts)]
        )

    def epoch_rows_of_dataset(self, number: int, epoch: int) -> np.ndarray:
        """Returns the row numbers of one dataset in an epoch, counted within this dataset."""
        size, count = self.sizes[number], int(self.rows_per_dataset[number])
        start = epoch * count
        turns = range(start // size, -(-(start + count) // size))
        orders = [random_stream(self.seed, RandomStreamId.MIXED_SETS, turn, number).permutation(size) for turn in turns]
        skipped = start - turns.start * size
        return np.concatenate(orders)[skipped : skipped + count]
