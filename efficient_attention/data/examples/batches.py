"""Makes batches of labelled examples for fine-tuning; each batch is padded to one of a few lengths
(data/batching/length_bucketing.py)."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from efficient_attention.data.batching.host_batch_shard import HostBatchShard
from efficient_attention.data.batching.length_bucketing import LengthBucketedBatches

Feature = dict[str, np.ndarray]
Batch = dict[str, np.ndarray]

# Token arrays of a batch: name -> padding value (None = the padding id). Scalars need no padding.
TOKEN_ARRAYS = {'tokens': None, 'token_types': 0, 'labels': -1, 'support': -1, 'is_global': False}
SCALARS = ('label', 'start', 'end', 'type')


@dataclasses.dataclass(frozen=True)
class FeatureBatches:
    """Makes training and evaluation batches from a list of features, which are tokenised examples.

    Attributes:
        features: the unpadded rows; see tasks/problems/problem.py.
        buckets: lengths to which rows are padded; a row longer than the last bucket is padded to `length`.
        length: most tokens of a row.
        batch_size: rows of the global batch; rows of weight 0 complete the last batch of an epoch.
        pad: the id of padding.
        is_row_alone: in evaluation, pad each row only to its own bucket, so that no result depends on the other rows
            of the batch. Needed for attention that depends on the row length; some batches are smaller.
        sentences: most sentences of a row, where rows are lists of sentences [S, l]. Rows with similar numbers of
            sentences share a batch, and both axes are padded to buckets. 0 = rows are not lists of sentences.
    """

    features: Sequence[Feature]
    buckets: tuple[int, ...]
    length: int
    batch_size: int
    pad: int
    seed: int = 0
    is_row_alone: bool = False
    sentences: int = 0

    @functools.cached_property
    def length_buckets(self) -> LengthBucketedBatches:
        """Returns the object that groups rows of similar length, and so decides which rows share a batch."""
        axis, most = (0, self.sentences) if self.sentences else (-1, self.length)
        lengths = np.array([feature['tokens'].shape[axis] for feature in self.features], np.int64)
        return LengthBucketedBatches(lengths, self.buckets, most, self.batch_size, self.seed)

    @property
    def steps_per_epoch(self) -> int:
        """Returns the number of batches in an epoch, which contains every row once."""
        return self.length_buckets.steps_per_epoch

    @functools.cached_property
    def choice_shape(self) -> tuple[int, ...]:
        """Returns the largest number of choices of a row, as the tuple (choices,), or () if rows have no choices."""
        return max(feature['tokens'].shape[:-1] for feature in self.features)

    def tokens_per_step(self) -> float:
        """Returns the mean number of tokens in a training batch, including padding and all choices."""
        sizes = [np.prod(self.padded_shape(rows)) for rows in self.length_buckets.epoch_plan(0)]
        return self.batch_size * float(np.mean(sizes))

    def training_batches(
        self, start_step: int, stop_step: int, process_index: int, process_count: int
    ) -> Iterator[Batch]:
        """Yields this process's rows of the training batches from `start_step` to `stop_step`.

        Raises:
            InputError: there is no row, or the batch size is not a multiple of the number of processes.
        """
        block = HostBatchShard(self.batch_size, process_index, process_count)
        for step in range(start_step, stop_step):
            yield self.make_batch(self.length_buckets.rows_of_step(step), block)

    def evaluation_batches(self, process_index: int, process_count: int) -> Iterator[Batch]:
        """Yields this process's rows of the evaluation batches, which contain every row once, the longest rows
        first."""
        block = HostBatchShard(self.batch_size, process_index, process_count)
        for rows in self.length_buckets.longest_first_batches(is_row_alone=self.is_row_alone):
            yield self.make_batch(rows, block)

    def make_batch(self, rows: np.ndarray, block: HostBatchShard) -> Batch:
        """Builds this process's rows of one batch, given the batch's row numbers; the arrays are described by
        `pad_and_stack_rows`."""
        first = block.process_index * block.rows
        block_rows = rows[first : first + block.rows]
        shape = (block.rows, *self.padded_shape(rows))
        return pad_and_stack_rows(
            [self.features[row] for row in block_rows], block_rows, shape, self.pad, self.array_templates
        )

    def padded_shape(self, rows: np.ndarray) -> tuple[int, ...]:
        """Returns the shape to which these rows are padded: (tokens,), or (choices, tokens), or (sentences, tokens)."""
        if not self.sentences:
            return (*self.choice_shape, self.length_buckets.bucket_of_rows(rows))
        longest = max(self.features[row]['tokens'].shape[-1] for row in rows)
        lengths = LengthBucketedBatches(np.zeros(0, np.int64), self.buckets, self.length, self.batch_size)
        return self.length_buckets.bucket_of_rows(rows), lengths.bucket_for_length(longest)

    @functools.cached_property
    def array_templates(self) -> Feature:
        """Returns a template array for each array name that occurs in any row, so that all batches have the same
        arrays."""
        merged: Feature = {}
        for feature in self.features:
            if feature.keys() - merged.keys():
                merged = feature | merged
        return merged


def pad_and_stack_rows(
    features: Sequence[Feature], numbers: np.ndarray, shape: tuple[int, ...], pad: int, like: Feature
) -> Batch:
    """Pads rows and stacks them to a batch: arrays [rows, tokens], [rows, choices, tokens] or [rows, sentences,
    tokens].

    Padding completes rows, choices and sentences; rows of weight 0 complete the batch. The batch adds four
    arrays: 'segments' int32 (1 = token, 0 = padding), 'lengths' int32 (their sums), 'weights' float32 [B] (1 = has a
    label), and 'index' int32 [B] (the rows' `numbers`, -1 = added row). `like` has one array of each name. Where a row
    lacks an array, such as a label, the batch has the padding value, or 0.
    """
    rows, length = shape[0], shape[-1]
    batch: Batch = {'index': np.full(rows, -1, np.int32), 'weights': np.zeros(rows, np.float32)}
    batch['index'][: len(features)] = numbers
    batch['weights'][: len(features)] = [float(is_labelled(feature)) for feature in features]
    for name, fill in TOKEN_ARRAYS.items():
        if name in like:
            # Token ids that are read from disk may have a smaller type.
            dtype = np.int32 if name == 'tokens' else like[name].dtype
            array = np.full(shape, pad if fill is None else fill, dtype)
            for row, feature in enumerate(features):
                if name in feature:
                    array[row][leading_slice(feature[name].shape)] = feature[name]
            batch[name] = array
    for name in SCALARS:
        if name in like:
            batch[name] = np.zeros(rows, like[name].dtype)
            batch[name][: len(features)] = [feature.get(name, 0) for feature in features]
    batch['segments'], batch['lengths'] = np.zeros(shape, np.int32), np.zeros(shape[:-1], np.int32)
    for row, feature in enumerate(features):
        tokens = feature.get('lengths', np.array(feature['tokens'].shape[-1]))
        batch['segments'][row][leading_slice(tokens.shape)] = np.arange(length) < tokens[..., None]
        place: tuple[int | slice, ...] = (row, *leading_slice(tokens.shape))
        batch['lengths'][place] = tokens
    return batch


def leading_slice(shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Returns slices that select the first `shape` entries along each axis of a larger array."""
    return tuple(slice(size) for size in shape)


def is_labelled(feature: Feature) -> bool:
    """Whether a tokenised example has a label of any kind."""
    return any(name in feature for name in ('label', 'labels', 'start'))
