"""Batches of a prepared corpus for training and evaluation, the same on any number of hosts and after any restart.

Row r of the global batch of step s is the row at position s * batch_size + r, whatever came before, so the step is
the whole state of the input. A process reads a contiguous block of each global batch: rows keyed by their place in the
batch (dropout) stay the same on any number of processes, and only the rows of the block are ever built.
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
from efficient_attention.data.batching.host_block import HostBlock
from efficient_attention.data.corpus.prepared_corpus import PreparedCorpus
from efficient_attention.data.corpus.rows import CorpusRows
from efficient_attention.data.preparation.worker_processes import follow_parent
from efficient_attention.errors import InputError, RunError

Row = dict[str, np.ndarray]
Batch = dict[str, np.ndarray]
ENDED = r'process was terminated unexpectedly with exit code (-?\d+)'  # what Grain says of a worker
THREADS = 1  # that build rows in a process; measured: the interpreter lock leaves more of them nothing to gain

_unfinished: weakref.WeakSet[Generator[Batch, None, None]] = weakref.WeakSet()


class Rows(Protocol):
    """The rows of a split."""

    count: int  # of an epoch

    def row_at(self, position: int) -> Row:
        """The row at a position of endless training."""

    def row(self, epoch: int, index: int) -> Row:
        """A row of an epoch."""

    def padding(self) -> Row:
        """A row with the same arrays that counts for nothing."""


MOST_EPOCHS_A_BATCH = 16  # beyond it a batch size is a slip, and would first be noticed by its memory


def training_batches(
    prepared: PreparedCorpus,
    config: DataConfig,
    block: HostBlock,
    *,
    seed: int,
    steps: range,
    rows: Rows | None = None,
) -> Iterator[Batch]:
    """The block [batch_size / process_count, ...] of the global batch of each step.

    `rows`: those of the train split where the caller has made them, as their plan takes a while to make, or they are
    not of masked language models.

    Raises:
        InputError: the batch is far larger than an epoch, the train split is too small, or (from the iterator) the
            corpus is damaged.
    """
    return batches_of_rows(rows or CorpusRows(prepared.train, prepared.vocabulary, config, seed), config, block, steps)


def batches_of_rows(rows: Rows, config: DataConfig, block: HostBlock, steps: range) -> Iterator[Batch]:
    """The same of rows that are there; raises InputError where the batch is far larger than an epoch."""
    if block.batch_size > MOST_EPOCHS_A_BATCH * rows.count:
        raise InputError(
            f'train.batch_size is {block.batch_size}, but an epoch has {rows.count} rows of {config.length} tokens; '
            f'a batch may hold each row {MOST_EPOCHS_A_BATCH} times at most'
        )
    source = BlockRows(rows.row_at, block, steps)
    return _batches(source, workers=config.workers, prefetch=config.prefetch)


def evaluation_batches(
    prepared: PreparedCorpus, config: DataConfig, block: HostBlock, *, seed: int, rows: Rows | None = None
) -> Iterator[Batch]:
    """Every held-out row exactly once, with masks from (seed, epoch 0, index); all processes yield equally many.

    The last global batch is filled up with rows of padding whose weights are all 0. Rows are built in threads, not
    in `config.workers` processes, whose start would take longer than most evaluations. `rows`: as of training.

    Raises:
        InputError: the held-out split is too small, or (from the iterator) the corpus is damaged.
    """
    return every_row_once(rows or CorpusRows(prepared.held_out, prepared.vocabulary, config, seed), config, block)


def every_row_once(rows: Rows, config: DataConfig, block: HostBlock) -> Iterator[Batch]:
    """The same of rows that are there."""
    steps = range(-(-rows.count // block.batch_size))
    source = BlockRows(functools.partial(_once, rows), block, steps)
    return _batches(source, workers=0, prefetch=config.prefetch)


def evaluation_row_count(prepared: PreparedCorpus, config: DataConfig, seed: int) -> int:
    """Number of held-out rows, padding not counted."""
    return CorpusRows(prepared.held_out, prepared.vocabulary, config, seed).count


def tokens_per_second(batches: Iterator[Batch], count: int) -> float:
    """Positions per second (padding counts: the model pays for it) that the input alone delivers over `count` batches.

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


class BlockRows:
    """The rows that one process reads in some steps, one after another: a source for Grain."""

    def __init__(self, read: Callable[[int], Row], block: HostBlock, steps: range) -> None:
        self._read = read
        self._start = steps.start * block.rows
        self._stop = steps.stop * block.rows
        self.block = block

    def __len__(self) -> int:
        return max(0, self._stop - self._start)

    def __getitem__(self, row: int) -> Row:
        return self._read(self.block.position(self._start + row))


def _once(rows: Rows, position: int) -> Row:
    return rows.row(0, position) if position < rows.count else rows.padding()


def _batches(source: BlockRows, *, workers: int, prefetch: int) -> Iterator[Batch]:
    """Batches of the rows, `prefetch` of them kept ready by threads, or by `workers` processes."""
    share = -(-prefetch // max(1, workers))
    dataset = grain.MapDataset.source(source).batch(source.block.rows, drop_remainder=True, batch_fn=_stack)
    options = grain.ReadOptions(num_threads=min(THREADS, share), prefetch_buffer_size=share)
    dataset = dataset.to_iter_dataset(options)
    batches = _closing(_in_processes(dataset, workers, share) if workers else dataset)
    _unfinished.add(batches)
    return batches


def _in_processes(dataset: grain.IterDataset, workers: int, buffered: int) -> grain.IterDataset:
    """`dataset`, built by `workers` processes that keep `buffered` batches each."""
    # Semaphores of earlier processes that lie in reference cycles: freed while Python 3.12 starts to track the new
    # ones, each would print a warning that it may leak.
    gc.collect()
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # Grain reads its flags; outside an absl app nobody has parsed any
    # Batches are small: they come through a pipe. A killed run would leave shared memory behind.
    through_pipe = grain.experimental.DatasetOptions(min_shm_size=sys.maxsize)
    dataset = grain.experimental.WithOptionsIterDataset(dataset, through_pipe)
    processes = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=buffered)
    return dataset.mp_prefetch(processes, worker_init_fn=_end_with_parent)


def _stack(rows: Sequence[Row]) -> Batch:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def _closing(dataset: grain.IterDataset) -> Generator[Batch, None, None]:
    iterator = iter(dataset)
    try:
        yield from iterator
    except RuntimeError as error:
        if not (ended := re.search(ENDED, str(error))):
            raise
        raise RunError(
            f'a process that builds batches (data.workers) ended with code {ended[1]}; the same command goes on from '
            'the last checkpoint, data.workers=0 builds them in this process'
        ) from None
    finally:
        iterator.close()


@atexit.register
def _close_unfinished() -> None:
    """Ends threads and workers of batches that a program left in the middle, while the interpreter still can."""
    for batches in list(_unfinished):
        batches.close()


def _end_with_parent(_worker: int, _workers: int) -> None:
    follow_parent()
