"""Rows of a language model: where each one starts, what it holds, and which segments may not read one another."""

import dataclasses

import numpy as np

from efficient_attention.errors import InputError

Row = dict[str, np.ndarray]
LARGEST = 2**31 - 1  # segment numbers are int32 and start again from 1 after it


@dataclasses.dataclass(frozen=True, eq=False)
class TextRows:
    """The ids x of a split, as rows of `length` tokens with their targets.

    Of a text, target i is x[i + 1] and its token x[i]: all but the first id are targets. Of images (`start` >= 0), each
    `length` ids long, target i is x[i]; its token is x[i - 1], or `start` where an image begins: all ids are targets.

    Attributes:
        ids: [N].
        length: tokens of a row.
        document_starts: int64 [documents], the first token of each; the first one is 0.
        cut_at_documents: each document is a segment of its own.
        start: the id before an image's first one; -1 = a text.
    """

    ids: np.ndarray
    length: int
    document_starts: np.ndarray
    cut_at_documents: bool = False
    start: int = -1

    @property
    def targets(self) -> int:
        """How many targets there are."""
        return len(self.ids) if self.start >= 0 else max(len(self.ids) - 1, 0)

    @property
    def grain(self) -> int:
        """What the first target of a row is a multiple of: 1, or the length of an image."""
        return self.length if self.start >= 0 else 1

    def row(self, first: int, stop: int | None = None, *, reading: int | None = None) -> Row:
        """The row of targets first:first + length: tokens, targets, weights (1 = counts) and segments, each [length].

        Where the targets end early, or at `stop`, the rest is padding: weight 0, segment 0. The segments of a row by
        itself are numbered 1, 2, ...; with `reading`, the number of times that the text was read before, the same
        number in two rows means the same document of the same reading (or just the same reading).
        """
        row = {name: np.zeros(self.length, np.int32) for name in ('tokens', 'targets', 'segments')}
        row['weights'] = np.zeros(self.length, np.float32)
        last = min(first + self.length, self.targets if stop is None else stop)
        if count := max(last - first, 0):
            row['tokens'][:count], row['targets'][:count] = self._texts(first, last)
            row['segments'][:count] = self._segments(first, count, reading)
            row['weights'][:count] = 1
        return row

    def _texts(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        if self.start < 0:
            text = np.asarray(self.ids[first : last + 1], np.int32)
            return text[:-1], text[1:]
        targets = np.asarray(self.ids[first:last], np.int32)
        return np.append(np.int32(self.start), targets[:-1]), targets

    def _segments(self, first: int, count: int, reading: int | None) -> np.ndarray:
        if not self.cut_at_documents:
            return np.full(count, 1 + (reading or 0) % LARGEST)
        documents = np.searchsorted(self.document_starts, first + np.arange(count), side='right')  # from 1
        if reading is None:
            return documents - documents[0] + 1
        return (documents - 1 + reading * (len(self.document_starts) + 1)) % LARGEST + 1


def check_rows(rows: TextRows) -> None:
    """Raises InputError unless there is one full row to train on."""
    if rows.targets < rows.length:
        if rows.start >= 0:
            raise InputError('there is no image to train on')
        raise InputError(
            f'the text to train on has {len(rows.ids)} tokens; one segment of data.length {rows.length} needs '
            f'{rows.length + 1}: lower data.length or add text'
        )
