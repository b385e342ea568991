"""Generates the rows of a dataset in their order; uses several processes if generation is slow."""

import functools
import logging
import time
from collections.abc import Iterator

from efficient_attention.data.arena.dataset_interface import ArenaDataset, ArenaRow, GeneratedDataset
from efficient_attention.data.preparation.worker_processes import map_in_processes, usable_cores
from efficient_attention.errors import InputError

PATIENCE = 5.0  # seconds of generation in one process before worker processes start
CHUNK = 16  # rows per task
FAULT = 'a process that generates rows died'


def generate_rows_in_parallel(
    arena_set: ArenaDataset, split: str, *, processes: int = 0, patience: float = PATIENCE
) -> Iterator[ArenaRow]:
    """Yields the rows of a split, generated in several processes if that is slow; neither the rows nor their order
    depend on the number of processes.

    Args:
        arena_set: the dataset.
        split: 'train', 'dev' or 'test'.
        processes: processes that generate rows; 0 = one per core. Rows from files are always read in this process.
        patience: seconds, including the caller's work per row, after which worker processes generate the remaining
            rows. If none can start, as in a script without a __main__ guard, or one dies, this process continues.

    Raises:
        InputError: a file is missing or invalid.
    """
    processes = processes or usable_cores()
    if not isinstance(arena_set, GeneratedDataset) or processes == 1:
        yield from arena_set.rows(split)
        return
    start, index = time.monotonic(), 0
    while index < arena_set.count and time.monotonic() - start < patience:
        yield arena_set.row(split, index)
        index += 1
    chunks = [range(first, min(first + CHUNK, arena_set.count)) for first in range(index, arena_set.count, CHUNK)]
    try:
        if chunks:
            for rows in map_in_processes(
                functools.partial(_generate_rows, arena_set, split), chunks, processes, fault=FAULT
            ):
                for row in rows:
                    yield row
                    index += 1
    except InputError as error:
        logging.getLogger(__name__).warning('%s; the main process generates the rows from %d on', error, index)
        for number in range(index, arena_set.count):
            yield arena_set.row(split, number)


def _generate_rows(arena_set: GeneratedDataset, split: str, numbers: range) -> list[ArenaRow]:
    return [arena_set.row(split, index) for index in numbers]
