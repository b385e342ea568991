"""The rows of a set in order, those that take long to generate in several processes."""

import functools
import logging
import time
from collections.abc import Iterator

from efficient_attention.data.arena.arena_row import ArenaRow, ArenaSet, Generated
from efficient_attention.data.preparation.worker_processes import in_processes, usable_cores
from efficient_attention.errors import InputError

PATIENCE = 5.0  # seconds before other processes are started
CHUNK = 16  # rows of one task
FAULT = 'a process that generates rows died'


def made_rows(arena_set: ArenaSet, split: str, *, processes: int = 0, patience: float = PATIENCE) -> Iterator[ArenaRow]:
    """The rows of a split, the same and in the same order on any number of processes.

    Args:
        arena_set: which rows.
        split: 'train', 'dev' or 'test'.
        processes: how many generate rows; 0 = one for each core. What is read from files is read in this process.
        patience: seconds, those of the reader too, after which others are started for the rows that are left. Where
            none can be, as from a script without a __main__ guard, or one dies, this process makes the rest.

    Raises:
        InputError: what is read is missing or bad.
    """
    processes = processes or usable_cores()
    if not isinstance(arena_set, Generated) or processes == 1:
        yield from arena_set.rows(split)
        return
    start, index = time.monotonic(), 0
    while index < arena_set.count and time.monotonic() - start < patience:
        yield arena_set.row(split, index)
        index += 1
    chunks = [range(first, min(first + CHUNK, arena_set.count)) for first in range(index, arena_set.count, CHUNK)]
    try:
        if chunks:
            for rows in in_processes(functools.partial(_rows, arena_set, split), chunks, processes, fault=FAULT):
                for row in rows:
                    yield row
                    index += 1
    except InputError as error:
        logging.getLogger(__name__).warning('%s; the rows from %d on are generated in this one', error, index)
        for number in range(index, arena_set.count):
            yield arena_set.row(split, number)


def _rows(arena_set: Generated, split: str, numbers: range) -> list[ArenaRow]:
    return [arena_set.row(split, index) for index in numbers]
