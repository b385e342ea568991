"""Makes batches of rows of different lengths: rows of similar length together, padded to one of a few lengths.

Which rows make up the batch of a training step is a function of (seed, step) alone. A few lengths mean a few compiled
programs; rows of similar length mean little padding.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from efficient_attention.data.epoch_cache import LastTwoEpochs
from efficient_attention.data.host_block import HostBlock
from efficient_attention.data.random_streams import Stream, random_stream
from efficient_attention.errors import InputError

Feature = dict[str, np.ndarray]
Batch = dict[str, np.ndarray]

# What a device gets of a feature: name -> the value behind its end. Scalars have no end.
TOKEN_ARRAYS = {'tokens': None, 'token_types': 0, 'labels': -1, 'support': -1, 'is_global': False}
SCALARS = ('label', 'start', 'end', 'type')
SORTED_TOGETHER = 32  # batches whose rows are sorted by length before they are cut: more pads less and mixes less


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
    """

    features: Sequence[Feature]
    buckets: tuple[int, ...]
    length: int
    batch_size: int
    pad: int
    seed: int = 0
    is_row_alone: bool = False
    plans: LastTwoEpochs = dataclasses.field(default_factory=LastTwoEpochs, repr=False, compare=False)

    @property
    def steps_per_epoch(self) -> int:
        """Batches that hold every row once."""
        return -(-len(self.features) // self.batch_size)

    @functools.cached_property
    def choices(self) -> tuple[int, ...]:
        """(A,) of the row with the most choices; () where rows are not of choices."""
        return max(feature['tokens'].shape[:-1] for feature in self.features)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row."""
        return np.array([feature['tokens'].shape[-1] for feature in self.features], np.int64)

    def tokens_per_step(self) -> float:
        """Mean tokens of a training batch, padding and choices included."""
        plan = self.plan(0)
        return int(np.prod(self.choices)) * self.batch_size * float(np.mean([self.bucket(rows) for rows in plan]))

    def training(self, start_step: int, stop_step: int, process_index: int, process_count: int) -> Iterator[Batch]:
        """This process's rows of the batches of steps start_step:stop_step.

        Raises:
            InputError: there is no row, or the batch does not divide over the processes.
        """
        block = HostBlock(self.batch_size, process_index, process_count)
        if not self.features:
            raise InputError('there is no row to train on')
        for step in range(start_step, stop_step):
            epoch, turn = divmod(step, self.steps_per_epoch)
            yield self.batch(self.plan(epoch)[turn], block)

    def evaluation(self, process_index: int, process_count: int) -> Iterator[Batch]:
        """This process's rows of batches that hold every row once, the longest first."""
        block = HostBlock(self.batch_size, process_index, process_count)
        order = np.argsort(-self.lengths, kind='stable')
        if self.is_row_alone:
            buckets = np.array([self.bucket(order[number : number + 1]) for number in range(len(order))])
            groups = np.split(order, np.flatnonzero(np.diff(buckets)) + 1)
        else:
            groups = [order]
        for group in groups:
            for start in range(0, len(group), self.batch_size):
                yield self.batch(group[start : start + self.batch_size], block)

    def plan(self, epoch: int) -> list[np.ndarray]:
        """The rows of each batch of an epoch."""
        return self.plans.get(epoch, self._make_plan)

    def _make_plan(self, epoch: int) -> list[np.ndarray]:
        rng, lengths = random_stream(self.seed, Stream.EXAMPLE_BATCHES, epoch), self.lengths
        order = rng.permutation(len(self.features))
        batches = []
        for start in range(0, len(order), SORTED_TOGETHER * self.batch_size):
            group = order[start : start + SORTED_TOGETHER * self.batch_size]
            group = group[np.argsort(lengths[group], kind='stable')]
            batches += [group[first : first + self.batch_size] for first in range(0, len(group), self.batch_size)]
        return [batches[turn] for turn in rng.permutation(len(batches))]

    def bucket(self, rows: np.ndarray) -> int:
        """The length to which these rows are padded."""
        longest = max(self.features[row]['tokens'].shape[-1] for row in rows)
        fitting = [bucket for bucket in self.buckets if longest <= bucket <= self.length]
        return fitting[0] if fitting else self.length

    def batch(self, rows: np.ndarray, block: HostBlock) -> Batch:
        """The process's block of the batch of these rows, its arrays as `arrays_of_rows` gives them."""
        length = self.bucket(rows)
        first = block.process_index * block.rows
        block_rows = rows[first : first + block.rows]
        shape = (block.rows, *self.choices, length)
        return arrays_of_rows([self.features[row] for row in block_rows], block_rows, shape, self.pad, self.like)

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
    """Arrays of `shape`, [B, L] or of choices [B, A, L], filled up with padding, with choices of it, rows of weight 0.

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
            array = np.full(shape, pad if fill is None else fill, like[name].dtype)
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
