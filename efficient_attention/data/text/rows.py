"""Cuts a text or images into rows for a language model: tokens, targets, segments and weights, starting at any
target."""

import dataclasses

import numpy as np

from efficient_attention.errors import InputError

Row = dict[str, np.ndarray]
LARGEST = 2**31 - 1  # largest segment number (int32); the segment after this one has number 1 again


@dataclasses.dataclass(frozen=True, eq=False)
class TextRows:
    """Rows of `length` tokens with their targets, cut from one split of a text or of a set of images.

    The ids of the split are x. In a text, target i is x[i + 1] and its token is x[i]; all ids except the first are
    targets. Images (`start` >= 0) are `length` ids long. There, target i is x[i]; its token is x[i - 1], or `start` at
    the beginning of an image. All ids are targets.

    Attributes:
        ids: [N].
        length: tokens of a row.
        document_starts: int64 [documents], first token of each document; starts with 0.
        cut_at_documents: whether each document is a separate segment.
        start: the id before an image's first id; -1 = a text.
    """

    ids: np.ndarray
    length: int
    document_starts: np.ndarray
    cut_at_documents: bool = False
    start: int = -1

    @property
    def target_count(self) -> int:
        """Returns the number of ids that are targets."""
        return len(self.ids) if self.start >= 0 else max(len(self.ids) - 1, 0)

    @property
    def row_start_multiple(self) -> int:
        """Returns the step between positions at which a row may start: 1 for texts, the length of an image for
        images."""
        return self.length if self.start >= 0 else 1

    def row(self, first: int, stop: int | None = None, *, reading: int | None = None) -> Row:
        """Returns the row with the targets first:first + length: arrays of tokens, targets, segments and weights (0 =
        the target does not count), each [length].

        Without `cut_at_documents` and `reading` also 'lengths' [], the number of tokens before the padding: all tokens
        then have segment 1.

        After the last target, or after `stop`, the row has padding: weight 0, segment 0. Without `reading`, segments of
        a row are 1, 2, ... `reading` counts earlier passes over the text. With it, equal segment numbers in two rows
        mean the same document in the same pass, or without `cut_at_documents` the same pass.
        """
        row = {name: np.zeros(self.length, np.int32) for name in ('tokens', 'targets', 'segments')}
        row['weights'] = np.zeros(self.length, np.float32)
        last = min(first + self.length, self.target_count if stop is None else stop)
        if count := max(last - first, 0):
            row['tokens'][:count], row['targets'][:count] = self._tokens_and_targets(first, last)
            row['segments'][:count] = self._segments(first, count, reading)
            row['weights'][:count] = 1
        has_lengths = not self.cut_at_documents and reading is None
        return row | {'lengths': np.array(count, np.int32)} if has_lengths else row

    def _tokens_and_targets(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
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


def check_enough_targets(rows: TextRows) -> None:
    """Raises InputError if there are too few targets for one full training row."""
    if rows.target_count < rows.length:
        if rows.start >= 0:
            raise InputError('there is no image to train on')
        raise InputError(
            f'the text to train on has {len(rows.ids)} tokens; one segment of data.length {rows.length} needs '
            f'{rows.length + 1}: lower data.length or add text'
        )
