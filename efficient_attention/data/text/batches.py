"""Makes batches of continuous text for language models; they are the same for any number of processes and after a
restart.

Only the step number determines the rows of a batch (rows.py), so the input has no other state.
"""

from collections.abc import Callable, Iterator

import numpy as np

from efficient_attention.data.batching.host_batch_shard import HostBatchShard
from efficient_attention.data.batching.random_streams import RandomStreamId, random_stream
from efficient_attention.data.text.rows import Row, TextRows, check_enough_targets
from efficient_attention.errors import InputError

Batch = dict[str, np.ndarray]


def training_batches(rows: TextRows, kind: str, block: HostBatchShard, *, seed: int, steps: range) -> Iterator[Batch]:
    """Yields this process's rows of each global training batch: arrays [batch_size / process_count, row length].

    With 'streams', row r reads one part of the text, targets / batch_size long, in order. It starts again when less
    than a row is left, and each pass over the part has different segment numbers. With 'windows', each row starts at
    a position sampled from (seed, step, r). Images are never cut.

    Raises:
        InputError: the text is too short for the batch.
    """
    check_enough_targets(rows)
    row_at = {'streams': _contiguous_stream_rows, 'windows': _random_window_rows}[kind](rows, block.batch_size, seed)
    numbers = _block_row_numbers(block)
    return (_stack([row_at(step, number) for number in numbers]) for step in steps)


def evaluation_batches(rows: TextRows, block: HostBatchShard, *, stride: int | None = None) -> Iterator[Batch]:
    """Yields evaluation batches in which every target is predicted exactly once; all processes yield equally many
    batches.

    Rows are windows of `rows.length` tokens that move by `stride` tokens. If both are equal (the default), rows are
    independent segments. Otherwise each row after the first predicts its last `stride` tokens, all after at least
    length - stride tokens of context. The last row ends with the text; padding of weight 0 completes it and the last
    batch.

    Raises:
        InputError: there is nothing to predict.
    """
    _check_has_targets(rows)
    stride = rows.length if stride is None else stride
    windows = 1 + -(-max(0, rows.target_count - rows.length) // stride)
    return (
        _stack([_sliding_window_row(rows, first + number, windows, stride) for number in _block_row_numbers(block)])
        for first in range(0, windows, block.batch_size)
    )


def memory_evaluation_batches(rows: TextRows, block: HostBatchShard) -> Iterator[Batch]:
    """Yields evaluation batches for models with memory: every target occurs once, in text order, and row r of the next
    batch continues row r.

    The targets are cut into consecutive parts of equal length, one stream per row of the global batch; the last parts
    may be shorter or empty. The first target of a part is predicted from the token before it. Padding of weight 0
    completes rows whose stream has ended. Equal segment numbers in rows of one stream mean the same document; with
    `cut_at_documents=False` all numbers are equal.

    Raises:
        InputError: there is nothing to predict.
    """
    _check_has_targets(rows)
    stretch = -(-rows.target_count // rows.row_start_multiple // block.batch_size) * rows.row_start_multiple
    numbers = _block_row_numbers(block)

    def row_at(first: int, stream: int) -> Row:
        return rows.row(stream * stretch + first, min((stream + 1) * stretch, rows.target_count), reading=0)

    return (_stack([row_at(first, stream) for stream in numbers]) for first in range(0, stretch, rows.length))


def _block_row_numbers(block: HostBatchShard) -> range:
    """Returns the numbers of the rows in the global batch that this process reads."""
    return range(block.process_index * block.rows, (block.process_index + 1) * block.rows)


def _sliding_window_row(rows: TextRows, number: int, windows: int, stride: int) -> Row:
    """Returns the row of a window with weight 0 for targets of earlier windows; after the last window, returns a row of
    padding."""
    row = rows.row(number * stride if number < windows else rows.target_count)
    if number:
        row['weights'][: rows.length - stride] = 0
    return row


def _check_has_targets(rows: TextRows) -> None:
    if not rows.target_count:
        if rows.start >= 0:
            raise InputError('no image is held out, so nothing can be predicted; raise data.held_out')
        raise InputError(
            f'the held-out text has {len(rows.ids)} tokens, so nothing can be predicted in it; raise data.held_out'
        )


def _contiguous_stream_rows(rows: TextRows, batch_size: int, _seed: int) -> Callable[[int, int], Row]:
    stretch = rows.target_count // rows.row_start_multiple // batch_size * rows.row_start_multiple
    steps = stretch // rows.length  # number of steps in which a stream reads its part of the text once
    if not steps:
        raise InputError(_text_too_short_message(rows, batch_size))
    return lambda step, row: rows.row(row * stretch + step % steps * rows.length, reading=step // steps)


def _text_too_short_message(rows: TextRows, batch_size: int) -> str:
    if rows.start >= 0:
        images = rows.target_count // rows.length
        return f'there are {images} images to train on, too few for {batch_size} streams; lower train.batch_size'
    return (
        f'the text to train on has {len(rows.ids)} tokens; {batch_size} streams (train.batch_size) of data.length '
        f'{rows.length} need {batch_size * rows.length + 1}: lower one of the two'
    )


def _random_window_rows(rows: TextRows, _batch_size: int, seed: int) -> Callable[[int, int], Row]:
    starts = (rows.target_count - rows.length) // rows.row_start_multiple + 1
    return lambda step, row: rows.row(
        int(random_stream(seed, RandomStreamId.TEXT_WINDOW, step, row).integers(starts)) * rows.row_start_multiple
    )


def _stack(rows: list[Row]) -> Batch:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
