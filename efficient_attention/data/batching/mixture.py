"""Several sets of rows mixed by shares: which rows an epoch reads, as a function of (seed, epoch) alone.

Shares by size with a limit, and their temperature: Raffel et al. 2019, arXiv 1910.10683, section 3.5.2. There each
example is drawn by the shares; here an epoch has whole numbers of rows by them, so that the shares hold exactly.
"""

import dataclasses
import functools

import numpy as np

from efficient_attention.data.batching.random_streams import Stream, random_stream


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Sets whose rows are numbered one set after the other.

    An epoch has as many rows as the sets have together, each counted up to the limit. A set goes on from epoch to
    epoch where it was, in an order drawn anew whenever it is through: none of its rows comes twice before all came.

    Attributes:
        sizes: rows of each set, at least 1.
        limit: rows that a set counts for at most; 0 = as many as it has.
        temperature: T of the shares r^(1/T), at least 1.
        seed: of the orders.
    """

    sizes: tuple[int, ...]
    limit: int = 0
    temperature: float = 1.0
    seed: int = 0

    @property
    def shares(self) -> np.ndarray:
        """Each set's share of the rows that are read; they sum to 1."""
        rates = self.counted.astype(np.float64)
        rates = (rates / rates.sum()) ** (1.0 / self.temperature)
        return rates / rates.sum()

    @property
    def counted(self) -> np.ndarray:
        """The rows that each set counts for."""
        sizes = np.array(self.sizes, np.int64)
        return np.minimum(sizes, self.limit) if self.limit else sizes

    @functools.cached_property
    def rows_of_sets(self) -> np.ndarray:
        """Rows that an epoch has of each set: its share to less than one row, and at least one row."""
        wanted = self.shares * self.counted.sum()
        rows = np.floor(wanted).astype(np.int64)
        missing = int(self.counted.sum() - rows.sum())
        rows[np.argsort(rows - wanted, kind='stable')[:missing]] += 1
        return np.maximum(rows, 1)

    @property
    def rows_per_epoch(self) -> int:
        """Rows of an epoch."""
        return int(self.rows_of_sets.sum())

    def rows(self, epoch: int) -> np.ndarray:
        """The numbers of an epoch's rows, set after set; a set of which more than all is wanted has rows repeatedly."""
        firsts = np.cumsum((0, *self.sizes[:-1]))
        return np.concatenate([first + self.of_set(number, epoch) for number, first in enumerate(firsts)])

    def of_set(self, number: int, epoch: int) -> np.ndarray:
        """The rows of one set in an epoch, counted from its first."""
        size, count = self.sizes[number], int(self.rows_of_sets[number])
        start = epoch * count
        turns = range(start // size, -(-(start + count) // size))
        orders = [random_stream(self.seed, Stream.MIXED_SETS, turn, number).permutation(size) for turn in turns]
        skipped = start - turns.start * size
        return np.concatenate(orders)[skipped : skipped + count]
