"""Makes batches of encoded source-target pairs of similar length; each batch is padded to one of a few lengths."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from efficient_attention.data.batching.host_batch_shard import HostBatchShard
from efficient_attention.data.batching.length_bucketing import LengthBucketedBatches
from efficient_attention.data.batching.mixture import Mixture
from efficient_attention.data.pairs.pair_encoder import EncodedPair
from efficient_attention.data.tokenizers.text_to_text_special_ids import SequenceSpecialIds

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class PairBatches:
    """Makes training and evaluation batches from a list of encoded pairs, with one pair per row.

    A batch has 'source' and 'source_segments' int32 [B, M]; 'tokens' (input of the decoder: the start, then the target
    without its last token), 'targets' and 'segments' int32 [B, L]; 'weights' float32 [B, L] (1 = token, 0 = padding);
    'source_lengths' and 'lengths' int32 [B], the sums of the segments; and 'index' int32 [B], the numbers of the pairs
    (-1 = a row that completes the batch).

    Attributes:
        pairs: encoded pairs.
        symbols: symbols of the source and target tokenizers.
        lengths: most tokens of a source and of a target.
        buckets: padded lengths, the same for both sides as far as `lengths` allow.
        batch_size: pairs of the global batch; rows of weight 0 complete the last batch of an epoch.
        seed: seed of the order of the pairs.
        alone: whether evaluation pads sources, and targets, only to the bucket of their own length, whatever else is
            in the batch; for attention that depends on the row length.
        mixture: the pairs of each training epoch; None = every pair once.
    """

    pairs: Sequence[EncodedPair]
    symbols: tuple[SequenceSpecialIds, SequenceSpecialIds]
    lengths: tuple[int, int]
    buckets: tuple[int, ...]
    batch_size: int
    seed: int = 0
    alone: tuple[bool, bool] = (False, False)
    mixture: Mixture | None = None

    @functools.cached_property
    def length_buckets(self) -> LengthBucketedBatches:
        """Returns the object that groups pairs by the longer of source and target, and so decides which pairs share a
        batch."""
        longer = np.array([max(len(pair.source), len(pair.target)) for pair in self.pairs], np.int64)
        return LengthBucketedBatches(longer, self.buckets, max(self.lengths), self.batch_size, self.seed, self.mixture)

    @property
    def rows_per_epoch(self) -> int:
        """Returns the number of pairs in a training epoch."""
        return self.length_buckets.rows_per_epoch

    def mean_padded_lengths(self) -> tuple[int, int]:
        """Returns the mean padded lengths of sources and of targets in training batches."""
        source, target = (
            np.mean([self.padded_lengths(rows) for rows in self.length_buckets.epoch_plan(0)], axis=0)
            .round()
            .astype(int)
        )
        return int(source), int(target)

    def tokens_per_step(self) -> float:
        """Returns the mean number of source and target tokens in a training batch, padding included."""
        plan = self.length_buckets.epoch_plan(0)
        return self.batch_size * float(np.mean([sum(self.padded_lengths(rows)) for rows in plan]))

    def padding_share(self) -> float:
        """Returns the share of padding in a training epoch; padding includes the rows that complete the last batch."""
        plan = self.length_buckets.epoch_plan(0)
        tokens = sum(
            len(self.pairs[number].source) + len(self.pairs[number].target) for rows in plan for number in rows
        )
        return 1.0 - tokens / (len(plan) * self.tokens_per_step())

    def training_batches(
        self, start_step: int, stop_step: int, process_index: int, process_count: int
    ) -> Iterator[Batch]:
        """Yields this process's rows of the training batches from `start_step` to `stop_step`.

        Raises:
            InputError: there is no pair, or the batch size is not a multiple of the number of processes.
        """
        block = HostBatchShard(self.batch_size, process_index, process_count)
        for step in range(start_step, stop_step):
            yield self.make_batch(self.length_buckets.rows_of_step(step), block)

    def evaluation_batches(self, process_index: int, process_count: int) -> Iterator[Batch]:
        """Yields this process's rows of the evaluation batches, which contain every pair once, the longest pairs
        first."""
        block = HostBatchShard(self.batch_size, process_index, process_count)
        for rows in self.evaluation_batch_rows():
            yield self.make_batch(rows, block, self.evaluation_padded_lengths(rows))

    def evaluation_batch_rows(self) -> Iterator[np.ndarray]:
        """Yields the pair numbers of each evaluation batch; every pair occurs once, and pairs that need different
        padded lengths are in different batches."""
        order = np.concatenate([*self.length_buckets.longest_first_batches(), np.zeros(0, np.int64)])
        keys = [self.required_padded_lengths(self.pairs[number]) for number in order]
        for key in dict.fromkeys(keys):
            group = order[[one == key for one in keys]]
            for start in range(0, len(group), self.batch_size):
                yield group[start : start + self.batch_size]

    def required_padded_lengths(self, pair: EncodedPair) -> tuple[int, int]:
        """Returns the padded lengths that a pair's source and target must have in evaluation; 0 = any length that is
        large enough."""
        sides = zip((pair.source, pair.target), self.lengths, self.alone, strict=True)
        source, target = (
            min(self.length_buckets.bucket_for_length(len(ids)), most) * is_alone for ids, most, is_alone in sides
        )
        return source, target

    def evaluation_padded_lengths(self, rows: np.ndarray) -> tuple[int, int]:
        """Returns the padded source and target lengths of an evaluation batch, given its pair numbers."""
        source, target = (
            own or most
            for own, most in zip(
                self.required_padded_lengths(self.pairs[rows[0]]), self.padded_lengths(rows), strict=True
            )
        )
        return source, target

    def padded_lengths(self, rows: np.ndarray) -> tuple[int, int]:
        """Returns the padded source and target lengths of a batch with these pairs."""
        bucket, (most_source, most_target) = self.length_buckets.bucket_of_rows(rows), self.lengths
        return min(bucket, most_source), min(bucket, most_target)

    def make_batch(self, rows: np.ndarray, block: HostBatchShard, lengths: tuple[int, int] | None = None) -> Batch:
        """Builds this process's rows of one batch, given the batch's pair numbers; `lengths` defaults to the result of
        `padded_lengths`."""
        first = block.process_index * block.rows
        numbers = rows[first : first + block.rows]
        pairs = [self.pairs[row] for row in numbers]
        sides = zip(lengths or self.padded_lengths(rows), self.symbols, strict=True)
        source, targets = (np.full((block.rows, length), symbols.pad, np.int32) for length, symbols in sides)
        source_segments, segments = np.zeros_like(source), np.zeros_like(targets)
        index = np.full(block.rows, -1, np.int32)
        index[: len(numbers)] = numbers
        for row, pair in enumerate(pairs):
            source[row, : len(pair.source)], source_segments[row, : len(pair.source)] = pair.source, 1
            targets[row, : len(pair.target)], segments[row, : len(pair.target)] = pair.target, 1
        starts = np.full((block.rows, 1), self.symbols[1].start, np.int32)
        return {
            'source': source,
            'source_segments': source_segments,
            'tokens': np.concatenate([starts, targets[:, :-1]], axis=1),
            'targets': targets,
            'segments': segments,
            'source_lengths': source_segments.sum(axis=1, dtype=np.int32),
            'lengths': segments.sum(axis=1, dtype=np.int32),
            'weights': segments.astype(np.float32),
            'index': index,
        }
