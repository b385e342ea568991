"""Makes batches of a prepared corpus for training and evaluation; they are the same for any number of processes and
after a restart.

Row r of the global batch of step s is the row at position s * batch_size + r. So the step number determines all input,
and the input has no other state. A process reads a contiguous block of each global batch and builds only the rows of
this block. Rows keep their index in the global batch, which seeds dropout, for any number of processes.
"""

import atexit
import functools
import gc
import itertools
import re
import sys
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Protocol

import grain
import numpy as np
from absl import flags

from efficient_attention.config.data import DataConfig
from efficient_attention.data.batching.host_batch_shard import HostBatchShard
from efficient_attention.data.corpus.masked_corpus_rows import MaskedCorpusRows
from efficient_attention.data.corpus.prepared_corpus import PreparedCorpus
from efficient_attention.data.preparation.worker_processes import exit_with_parent
from efficient_attention.errors import InputError, RunError

Row = dict[str, np.ndarray]
Batch = dict[str, np.ndarray]
ENDED = r'process was terminated unexpectedly with exit code (-?\d+)'  # message of Grain when a worker process has died
THREADS = 1  # threads per process that build rows; measurements showed no gain from more, due to the interpreter lock

_unfinished: weakref.WeakSet[Generator[Batch, None, None]] = weakref.WeakSet()


class RowSource(Protocol):
    """Interface of the classes that build the rows of a corpus split, such as `MaskedCorpusRows`."""

    count: int  # number of rows in an epoch

    def training_row(self, position: int) -> Row:
        """Returns the training row at a position; positions count rows over all epochs."""

    def row(self, epoch: int, index: int) -> Row:
        """Returns the row with number `index` in an epoch."""

    def padding_row(self) -> Row:
        """Returns a row of only padding, which has the same arrays as other rows and weight 0 in every loss."""


# A batch with more than 16 epochs of rows is surely a mistake. This limit reports the mistake before memory runs out.
MOST_EPOCHS_A_BATCH = 16


def training_batches(
    prepared: PreparedCorpus,
    config: DataConfig,
    block: HostBatchShard,
    *,
    seed: int,
    steps: range,
    rows: RowSource | None = None,
) -> Iterator[Batch]:
    """Yields this process's rows of each global training batch: arrays [batch_size / process_count, ...].

    A caller may pass its own `rows`: rows of the train split that it has already planned, which takes time, or rows
    of another kind than for masked language models.

    Raises:
        InputError: the batch is far larger than an epoch, the train split is too small, or (from the iterator) the
            corpus is damaged.
    """
    return training_batches_of_rows(
        rows or MaskedCorpusRows(prepared.train, prepared.vocabulary, config, seed), config, block, steps
    )


def training_batches_of_rows(
    rows: RowSource, config: DataConfig, block: HostBatchShard, steps: range
) -> Iterator[Batch]:
    """Yields training batches, as `training_batches` does, from given rows; raises InputError if a batch is far larger
    than an epoch."""
    if block.batch_size > MOST_EPOCHS_A_BATCH * rows.count:
        raise InputError(
            f'train.batch_size is {block.batch_size}, but an epoch has {rows.count} rows of {config.length} tokens; '
            f'a batch may hold each row {MOST_EPOCHS_A_BATCH} times at most'
        )
    source = GrainRowSource(rows.training_row, block, steps)
    return _prefetched_batches(source, workers=config.workers, prefetch=config.prefetch)


def evaluation_batches(
    prepared: PreparedCorpus, config: DataConfig, block: HostBatchShard, *, seed: int, rows: RowSource | None = None
) -> Iterator[Batch]:
    """Yields batches that contain every held-out row once, with the same masks in every evaluation; all processes yield
    equally many batches.

    The last global batch is filled with rows of padding whose weights are all 0. Rows are built in threads, not in
    `config.workers` processes, because starting these takes longer than most evaluations. `rows`: see
    `training_batches`.

    Raises:
        InputError: the held-out split is too small, or (from the iterator) the corpus is damaged.
    """
    return evaluation_batches_of_rows(
        rows or MaskedCorpusRows(prepared.held_out, prepared.vocabulary, config, seed), config, block
    )


def evaluation_batches_of_rows(rows: RowSource, config: DataConfig, block: HostBatchShard) -> Iterator[Batch]:
    """Yields evaluation batches, as `evaluation_batches` does, from given rows."""
    steps = range(-(-rows.count // block.batch_size))
    source = GrainRowSource(functools.partial(_row_or_padding, rows), block, steps)
    return _prefetched_batches(source, workers=0, prefetch=config.prefetch)


def evaluation_row_count(prepared: PreparedCorpus, config: DataConfig, seed: int) -> int:
    """Returns the number of held-out rows; rows of padding do not count."""
    return MaskedCorpusRows(prepared.held_out, prepared.vocabulary, config, seed).count


def tokens_per_second(batches: Iterator[Batch], count: int) -> float:
    """Measures the speed of the input pipeline over `count` batches, in tokens per second; padding counts as tokens.

    The first batch is not timed: it waits for the plan and for workers to start. `count` should be well above the
    number of batches that were prefetched meanwhile.

    Raises:
        ValueError: fewer than `count` + 1 batches.
    """
    next(batches)
    start = time.perf_counter()
    sizes = [batch['tokens'].size for batch in itertools.islice(batches, count)]
    seconds = time.perf_counter() - start
    if len(sizes) < count:
        raise ValueError(f'{len(sizes) + 1} batches; {count + 1} are needed')
    return sum(sizes) / seconds


class GrainRowSource:
    """The rows that one process reads in a range of steps, in order, as a data source for Grain."""

    def __init__(self, read: Callable[[int], Row], block: HostBatchShard, steps: range) -> None:
        self._read = read
        self._start = steps.start * block.rows
        self._stop = steps.stop * block.rows
        self.block = block

    def __len__(self) -> int:
        return max(0, self._stop - self._start)

    def __getitem__(self, row: int) -> Row:
        return self._read(self.block.global_position(self._start + row))


def _row_or_padding(rows: RowSource, position: int) -> Row:
    return rows.row(0, position) if position < rows.count else rows.padding_row()


def _prefetched_batches(source: GrainRowSource, *, workers: int, prefetch: int) -> Iterator[Batch]:
    """Yields batches of the rows in order; threads or worker processes prefetch `prefetch` batches."""
    share = -(-prefetch // max(1, workers))
    dataset = grain.MapDataset.source(source).batch(source.block.rows, drop_remainder=True, batch_fn=_stack)
    options = grain.ReadOptions(num_threads=min(THREADS, share), prefetch_buffer_size=share)
    dataset = dataset.to_iter_dataset(options)
    batches = _iterate_and_close(_load_in_workers(dataset, workers, share) if workers else dataset)
    _unfinished.add(batches)
    return batches


def _load_in_workers(dataset: grain.IterDataset, workers: int, buffered: int) -> grain.IterDataset:
    """Returns a Grain dataset whose batches are built by worker processes; each worker buffers up to `buffered`
    batches."""
    # Semaphores of ended processes may remain in reference cycles. This call frees them now.
    # If Python 3.12 freed old semaphores while it starts to track new ones, it would print warnings about leaks.
    gc.collect()
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # Grain reads absl flags, which are not parsed if the program is no absl app.
    # Batches are small, so workers send them through a pipe. Shared memory would remain after a killed run.
    through_pipe = grain.experimental.DatasetOptions(min_shm_size=sys.maxsize)
    dataset = grain.experimental.WithOptionsIterDataset(dataset, through_pipe)
    processes = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=buffered)
    return dataset.mp_prefetch(processes, worker_init_fn=_init_grain_worker)


def _stack(rows: Sequence[Row]) -> Batch:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def _iterate_and_close(dataset: grain.IterDataset) -> Generator[Batch, None, None]:
    iterator = iter(dataset)
    try:
        yield from iterator
    except RuntimeError as error:
        if not (ended := re.search(ENDED, str(error))):
            raise
        raise RunError(
            f'a process that builds batches (data.workers) ended with code {ended[1]}; the same command resumes '
            'from the last checkpoint; data.workers=0 builds batches in the main process'
        ) from None
    finally:
        iterator.close()


@atexit.register
def _close_unfinished() -> None:
    """Closes unfinished generators of batches, which ends their threads and workers, before the interpreter shuts
    down."""
    for batches in list(_unfinished):
        batches.close()


def _init_grain_worker(_worker: int, _workers: int) -> None:
    exit_with_parent()
