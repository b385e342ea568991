"""Batches of a text for language models: the same on any number of hosts and after any restart.

A row of length L starts somewhere in the ids x: its tokens are x[start : start + L], its targets the same moved on by
one. The step decides where each row starts, so the step is the whole state of the input.
"""

from collections.abc import Callable, Iterator

import numpy as np

from efficient_attention.data.config import DataConfig
from efficient_attention.data.examples import random_stream
from efficient_attention.data.pipeline import HostBlock
from efficient_attention.errors import InputError

Row = dict[str, np.ndarray]
Batch = dict[str, np.ndarray]
WINDOWS = 3  # a stream of random numbers beside those of examples.py


def text_batches(
    ids: np.ndarray,
    config: DataConfig,
    *,
    batch_size: int,
    seed: int,
    start_step: int,
    stop_step: int,
    process_index: int = 0,
    process_count: int = 1,
) -> Iterator[Batch]:
    """This process's block [batch_size / process_count, L] of the global batch of each step start_step:stop_step.

    With `batches='streams'` row r reads its own part of the text, (tokens - 1) / batch_size long, in order and again
    from its start when less than a row is left of it. With 'windows' each row starts anywhere, from (seed, step, r).

    Raises:
        InputError: the batch does not divide over the processes, or the text is too short for it.
    """
    block = HostBlock(batch_size, process_index, process_count)
    check_length(ids, config.length)
    start_of = {'streams': _stream_start, 'windows': _window_start}[config.batches](ids, config, batch_size, seed)
    rows = range(process_index * block.rows, (process_index + 1) * block.rows)
    return (
        _stack([segment(ids, start_of(step, row), config.length) for row in rows])
        for step in range(start_step, stop_step)
    )


def text_evaluation_batches(
    ids: np.ndarray,
    length: int,
    *,
    stride: int | None = None,
    batch_size: int,
    process_index: int = 0,
    process_count: int = 1,
) -> Iterator[Batch]:
    """Every token but the first predicted exactly once; all processes yield equally many batches.

    Rows are windows of `length` tokens, each `stride` further on: independent segments where both are the same (the
    default), else each row after the first predicts its last `stride` tokens, all with at least length - stride tokens
    before them. The last row is as short as the text leaves it; it and the last batch are filled up with weight 0.

    Raises:
        InputError: the batch does not divide over the processes, or there is nothing to predict.
    """
    block = HostBlock(batch_size, process_index, process_count)
    if len(ids) < 2:
        raise InputError(f'the held-out text has {len(ids)} tokens; nothing can be predicted in it')
    stride = length if stride is None else stride
    windows = 1 + -(-max(0, len(ids) - 1 - length) // stride)
    rows = range(process_index * block.rows, (process_index + 1) * block.rows)
    return (
        _stack([_window(ids, first + row, windows, length, stride) for row in rows])
        for first in range(0, windows, batch_size)
    )


def _window(ids: np.ndarray, number: int, windows: int, length: int, stride: int) -> Row:
    """The row of window `number`, where what the window before has predicted weighs 0; padding beyond the last one."""
    row = segment(ids, number * stride if number < windows else len(ids), length)
    if number:
        row['weights'][: length - stride] = 0
    return row


def segment(ids: np.ndarray, start: int, length: int) -> Row:
    """The row that starts at `start`: tokens, targets, weights (1 = counts) and segments (0 = padding), each [L].

    Where the text ends early, or has ended before `start`, the rest is padding with weight 0.
    """
    text = np.asarray(ids[start : start + length + 1], np.int32)
    count = max(len(text) - 1, 0)
    row = {name: np.zeros(length, np.int32) for name in ('tokens', 'targets', 'segments')}
    row['weights'] = np.zeros(length, np.float32)
    row['tokens'][:count], row['targets'][:count] = text[:count], text[1:]
    row['weights'][:count], row['segments'][:count] = 1, 1
    return row


def check_length(ids: np.ndarray, length: int) -> None:
    """Raises InputError unless the text has one row of tokens with their targets."""
    if len(ids) <= length:
        raise InputError(
            f'the text to train on has {len(ids)} tokens; one segment of data.length {length} needs {length + 1}'
        )


def _stream_start(ids: np.ndarray, config: DataConfig, batch_size: int, _seed: int) -> Callable[[int, int], int]:
    part = (len(ids) - 1) // batch_size
    steps = part // config.length  # of one pass
    if not steps:
        raise InputError(
            f'the text to train on has {len(ids)} tokens; {batch_size} streams (train.batch_size) of data.length '
            f'{config.length} need {batch_size * config.length + 1}'
        )
    return lambda step, row: row * part + step % steps * config.length


def _window_start(ids: np.ndarray, config: DataConfig, _batch_size: int, seed: int) -> Callable[[int, int], int]:
    starts = len(ids) - config.length
    return lambda step, row: int(random_stream(seed, WINDOWS, step, row).integers(starts))


def _stack(rows: list[Row]) -> Batch:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
