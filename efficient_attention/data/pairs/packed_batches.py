"""Makes batches in which each row contains several source-target pairs, so that rows have little padding.

The pairs in each row are a function of only (seed, epoch). Each epoch puts its pairs into a new random order; each pair
goes into the first row with enough free tokens on both sides (Krell et al. 2021, arXiv 2107.02027, compare packings).
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from efficient_attention.data.batching.epoch_cache import TwoEpochCache
from efficient_attention.data.batching.host_batch_shard import HostBatchShard
from efficient_attention.data.batching.mixture import Mixture
from efficient_attention.data.batching.random_streams import RandomStreamId, random_stream
from efficient_attention.data.pairs.pair_batches import Batch
from efficient_attention.data.pairs.pair_encoder import EncodedPair
from efficient_attention.data.tokenizers.text_to_text_special_ids import SequenceSpecialIds
from efficient_attention.errors import InputError

OPEN_ROWS = 64  # A pair may join one of up to 64 incomplete rows. A larger number means less padding and more time.
SIDES = {'source': ('source', 'source_segments', 'source_positions'), 'target': ('targets', 'segments', 'positions')}


@dataclasses.dataclass(frozen=True)
class PackedBatches:
    """Batches of packed rows, for training only; evaluation has one pair per row (`PairBatches`).

    A batch has the arrays of `PairBatches` except 'index'. Segments 1, 2, ... mark the pairs of a row.
    'source_positions' and 'positions', int32, start at 0 in each pair.

    Attributes:
        pairs: encoded pairs, each within `lengths`.
        symbols: symbols of the source and target tokenizers.
        lengths: tokens of a source row and of a target row.
        batch_size: rows of the global batch; rows of weight 0 complete the last batch of an epoch.
        seed: seed of the order of the pairs.
        mixture: the pairs of each epoch; None = every pair once.
    """

    pairs: Sequence[EncodedPair]
    symbols: tuple[SequenceSpecialIds, SequenceSpecialIds]
    lengths: tuple[int, int]
    batch_size: int
    seed: int = 0
    mixture: Mixture | None = None
    plans: TwoEpochCache = dataclasses.field(default_factory=TwoEpochCache, repr=False, compare=False)
    # epoch -> number of its steps; has only epochs that have been planned
    counts: dict[int, int] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @functools.cached_property
    def source_target_sizes(self) -> list[tuple[int, int]]:
        """Returns the number of tokens of the source and of the target, per pair."""
        return [(len(pair.source), len(pair.target)) for pair in self.pairs]

    @property
    def rows_per_epoch(self) -> int:
        """Returns the number of rows in the first epoch; other epochs have a few rows more or fewer."""
        return len(self.epoch_plan(0))

    def mean_padded_lengths(self) -> tuple[int, int]:
        """Returns the row length of sources and the row length of targets; all packed rows have these lengths."""
        return self.lengths

    def tokens_per_step(self) -> float:
        """Returns the number of source and target tokens in a training batch, padding included."""
        return float(self.batch_size * sum(self.lengths))

    def padding_share(self) -> float:
        """Returns the share of padding in the rows of the first epoch."""
        rows = self.epoch_plan(0)
        return 1.0 - sum(sum(self.source_target_sizes[number]) for row in rows for number in row) / (
            len(rows) * sum(self.lengths)
        )

    def training_batches(
        self, start_step: int, stop_step: int, process_index: int, process_count: int
    ) -> Iterator[Batch]:
        """Yields this process's rows of the training batches from `start_step` to `stop_step`.

        Raises:
            InputError: there is no pair, or the batch size is not a multiple of the number of processes.
        """
        block = HostBatchShard(self.batch_size, process_index, process_count)
        for step in range(start_step, stop_step):
            yield self.make_batch(self.rows_of_step(step), block)

    def rows_of_step(self, step: int) -> list[list[int]]:
        """Returns the rows of a training step, each as a list of pair numbers; a resumed run first plans all earlier
        epochs once."""
        if not self.pairs:
            raise InputError('there is no row to train on')
        epoch = 0
        while step >= self.steps_in_epoch(epoch):
            step -= self.steps_in_epoch(epoch)
            epoch += 1
        return self.epoch_plan(epoch)[step * self.batch_size : (step + 1) * self.batch_size]

    def steps_in_epoch(self, epoch: int) -> int:
        """Returns the number of batches in an epoch."""
        if epoch not in self.counts:
            self.counts[epoch] = -(-len(self.epoch_plan(epoch)) // self.batch_size)
        return self.counts[epoch]

    def epoch_plan(self, epoch: int) -> list[list[int]]:
        """Returns the rows of an epoch, each as a list of pair numbers."""
        return self.plans.get(epoch, self._make_epoch_plan)

    def _make_epoch_plan(self, epoch: int) -> list[list[int]]:
        rng = random_stream(self.seed, RandomStreamId.PACKED_PAIRS, epoch)
        numbers = self.mixture.epoch_rows(epoch) if self.mixture else np.arange(len(self.pairs))
        rows = first_fit_packing(rng.permutation(numbers).tolist(), self.source_target_sizes, self.lengths)
        return [rows[place] for place in rng.permutation(len(rows))]

    def make_batch(self, rows: Sequence[Sequence[int]], block: HostBatchShard) -> Batch:
        """Builds this process's rows of one batch, given the pair numbers of each row of the batch."""
        first = block.process_index * block.rows
        batch: Batch = {}
        for length, symbols, (side, names) in zip(self.lengths, self.symbols, SIDES.items(), strict=True):
            texts = [[getattr(self.pairs[number], side) for number in row] for row in rows[first : first + block.rows]]
            batch |= dict(zip(names, concatenate_into_rows(texts, (block.rows, length), symbols.pad), strict=True))
        before = np.roll(batch['targets'], 1, axis=1)
        is_first = (batch['positions'] == 0) & (batch['segments'] > 0)
        batch['tokens'] = np.where(is_first, np.int32(self.symbols[1].start), before)
        return batch | {'weights': (batch['segments'] > 0).astype(np.float32)}


def concatenate_into_rows(
    rows: Sequence[Sequence[np.ndarray]], shape: tuple[int, int], pad: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Concatenates the texts of each row; returns the ids, segments (0 = padding) and positions, each int32 of the
    given shape."""
    ids, segments, positions = np.full(shape, pad, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    for row, texts in enumerate(rows):
        lengths = [len(text) for text in texts]
        total = sum(lengths)
        ids[row, :total] = np.concatenate(texts)
        segments[row, :total] = np.repeat(np.arange(1, len(texts) + 1), lengths)
        positions[row, :total] = np.concatenate([np.arange(length) for length in lengths])
    return ids, segments, positions


def first_fit_packing(
    numbers: Sequence[int], sizes: Sequence[tuple[int, int]], lengths: tuple[int, int]
) -> list[list[int]]:
    """Packs pairs into rows (first fit): each pair goes into the first open row with space for its source and target,
    or else into a new row.

    Args:
        numbers: the numbers in packing order.
        sizes: both sizes of every number, each within `lengths`.
        lengths: limits of the summed sizes in a row.
    """
    closed: list[list[int]] = []
    # for each row that may get more pairs: its pair numbers, and how many source and target tokens still fit into it
    opened: list[tuple[list[int], list[int]]] = []
    for number in numbers:
        source, target = sizes[number]
        row = next((one for one in opened if one[1][0] >= source and one[1][1] >= target), None)
        if row is None:
            row = ([], list(lengths))
            opened.append(row)
        row[0].append(number)
        row[1][0] -= source
        row[1][1] -= target
        if len(opened) > OPEN_ROWS:
            closed.append(opened.pop(0)[0])
    return closed + [row for row, _ in opened]
