"""Makes batches of labelled rows of different lengths, padded to one of a few (data/batching/length_batches.py)."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from efficient_attention.data.batching.host_block import HostBlock
from efficient_attention.data.batching.length_batches import LengthBatches

Feature = dict[str, np.ndarray]
Batch = dict[str, np.ndarray]

# What a device gets of a feature: name -> the value behind its end. Scalars have no end.
TOKEN_ARRAYS = {'tokens': None, 'token_types': 0, 'labels': -1, 'support': -1, 'is_global': False}
SCALARS = ('label', 'start', 'end', 'type')


@dataclasses.dataclass(frozen=True)
class FeatureBatches:
    """Batches of a list of features.

    Attributes:
        features: the rows, each of its own length; see tasks/problems/problem.py.
        buckets: row lengths to pad to; a row longer than the last is padded to `length`.
        length: of the longest row allowed.
        batch_size: rows of the global batch; the last of an epoch is filled up with rows of weight 0.
        pad: the id of padding.
        is_row_alone: in an evaluation each row is padded to the bucket of its own length, so that no result depends on
            what comes with it; costs some smaller batches. For attention that reads the length of the row.
        sentences: most of a row where rows are lists of sentences [S, l]: rows with about as many sentences share a
            batch, and both axes are padded to buckets; 0 = they are not.
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
    def plan(self) -> LengthBatches:
        """Which rows share a batch."""
        axis, most = (0, self.sentences) if self.sentences else (-1, self.length)
        lengths = np.array([feature['tokens'].shape[axis] for feature in self.features], np.int64)
        return LengthBatches(lengths, self.buckets, most, self.batch_size, self.seed)

    @property
    def steps_per_epoch(self) -> int:
        """Batches that hold every row once."""
        return self.plan.steps_per_epoch

    @functools.cached_property
    def choices(self) -> tuple[int, ...]:
        """(A,) of the row with the most choices; () where rows are not of choices."""
        return max(feature['tokens'].shape[:-1] for feature in self.features)

    def tokens_per_step(self) -> float:
        """Mean tokens of a training batch, padding and choices included."""
        sizes = [np.prod(self.row_shape(rows)) for rows in self.plan.plan(0)]
        return self.batch_size * float(np.mean(sizes))

    def training(self, start_step: int, stop_step: int, process_index: int, process_count: int) -> Iterator[Batch]:
        """This process's rows of the batches of steps start_step:stop_step.

        Raises:
            InputError: there is no row, or the batch does not divide over the processes.
        """
        block = HostBlock(self.batch_size, process_index, process_count)
        for step in range(start_step, stop_step):
            yield self.batch(self.plan.of_step(step), block)

    def evaluation(self, process_index: int, process_count: int) -> Iterator[Batch]:
        """This process's rows of batches that hold every row once, the longest first."""
        block = HostBlock(self.batch_size, process_index, process_count)
        for rows in self.plan.in_order(is_row_alone=self.is_row_alone):
            yield self.batch(rows, block)

    def batch(self, rows: np.ndarray, block: HostBlock) -> Batch:
        """The process's block of the batch of these rows, its arrays as `arrays_of_rows` gives them."""
        first = block.process_index * block.rows
        block_rows = rows[first : first + block.rows]
        shape = (block.rows, *self.row_shape(rows))
        return arrays_of_rows([self.features[row] for row in block_rows], block_rows, shape, self.pad, self.like)

    def row_shape(self, rows: np.ndarray) -> tuple[int, ...]:
        """What these rows are padded to: (L,), of choices (A, L), of sentences (S, L)."""
        if not self.sentences:
            return (*self.choices, self.plan.bucket(rows))
        longest = max(self.features[row]['tokens'].shape[-1] for row in rows)
        lengths = LengthBatches(np.zeros(0, np.int64), self.buckets, self.length, self.batch_size)
        return self.plan.bucket(rows), lengths.bucket_of(longest)

    @functools.cached_property
    def like(self) -> Feature:
        """One array of each name that any row has, so that all batches have the same."""
        merged: Feature = {}
        for feature in self.features:
            if feature.keys() - merged.keys():
                merged = feature | merged
        return merged


def arrays_of_rows(
    features: Sequence[Feature], numbers: np.ndarray, shape: tuple[int, ...], pad: int, like: Feature
) -> Batch:
    """Arrays of `shape`, [B, L], [B, A, L] or [B, S, L], filled up with padding, choices or sentences of it, and rows
    of weight 0.

    Beside the features' arrays: 'segments' int32 (1 = token, 0 = padding), 'weights' float32 [B] (1 = has a label),
    'index' int32 [B], the rows' `numbers` (-1 = filled up). `like` has one array of each name there is; a row
    without one of them, such as a label, gets what is behind the end of a row, or 0.
    """
    rows, length = shape[0], shape[-1]
    batch: Batch = {'index': np.full(rows, -1, np.int32), 'weights': np.zeros(rows, np.float32)}
    batch['index'][: len(features)] = numbers
    batch['weights'][: len(features)] = [float(is_labelled(feature)) for feature in features]
    for name, fill in TOKEN_ARRAYS.items():
        if name in like:
            dtype = np.int32 if name == 'tokens' else like[name].dtype  # tokens on disk are shorter numbers
            array = np.full(shape, pad if fill is None else fill, dtype)
            for row, feature in enumerate(features):
                if name in feature:
                    array[row][corner(feature[name].shape)] = feature[name]
            batch[name] = array
    for name in SCALARS:
        if name in like:
            batch[name] = np.zeros(rows, like[name].dtype)
            batch[name][: len(features)] = [feature.get(name, 0) for feature in features]
    batch['segments'] = np.zeros(shape, np.int32)
    for row, feature in enumerate(features):
        tokens = feature.get('lengths', np.array(feature['tokens'].shape[-1]))
        batch['segments'][row][corner(tokens.shape)] = np.arange(length) < tokens[..., None]
    return batch


def corner(shape: tuple[int, ...]) -> tuple[slice, ...]:
    """The first `shape` entries of a larger array."""
    return tuple(slice(size) for size in shape)


def is_labelled(feature: Feature) -> bool:
    """Whether a row has something to learn from."""
    return any(name in feature for name in ('label', 'labels', 'start'))
