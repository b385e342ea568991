"""Handles texts that are too long for a row: cuts them, leaves them out, splits them into windows or raises.

Every change is reported in a note to the user.
"""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from efficient_attention.data.corpus.sentence_pairs import truncated_lengths
from efficient_attention.errors import InputError
from efficient_attention.tasks.problems.encoded_text import EncodedText
from efficient_attention.tasks.problems.token_windows import window_starts

Ids = np.ndarray  # token ids, integers [l]
# If more files than this have rows that are too long, one note gives the totals of all files. RACE has 28,000 files,
# one per article.
MOST_NOTES = 4


@dataclasses.dataclass(frozen=True)
class TokenLengthPolicy:
    """The rule for texts that have too many tokens for one row.

    Attributes:
        policy: `examples.overlong`, see config/examples.py.
        stride: tokens from the start of one window to the start of the next.
        length: most tokens of a row, special tokens included.
    """

    policy: str
    stride: int
    length: int

    @property
    def limit_in_words(self) -> str:
        """Returns a phrase for messages that describes the length limit of a row."""
        return f'data.length {self.length} tokens'

    def tokens_left_for_texts(self, added: int, texts: int) -> int:
        """Returns the number of tokens that a row has for its texts, besides `added` special tokens.

        It raises InputError if there is less than one token per text.
        """
        if self.length < added + texts:
            raise InputError(f'data.length is {self.length}; {texts} texts with {added} special tokens need more')
        return self.length - added

    def fit_to_rows(self, texts: Sequence[Ids], added: int, where: str, fields: Sequence[str]) -> list[tuple[Ids, ...]]:
        """Returns the rows made from one text or two texts, each row with a part of each text.

        If the texts fit, there is one row; otherwise the policy decides.

        Args:
            texts: the ids of one or two texts.
            added: special tokens per row.
            where: file and line, for messages.
            fields: the names of the texts, for messages.

        Raises:
            InputError: the policy is 'error', or the shorter of two texts is too long for windows of the longer text.
        """
        room = self.tokens_left_for_texts(added, len(texts))
        total = sum(map(len, texts))
        if total <= room:
            return [tuple(texts)]
        if self.policy == 'skip':
            return []
        if self.policy == 'truncate':
            kept = (room,) if len(texts) == 1 else truncated_lengths(len(texts[0]), len(texts[1]), room)
            return [tuple(ids[:count] for ids, count in zip(texts, kept, strict=True))]
        named = ' and '.join(map(repr, fields))
        if self.policy == 'error':
            have = f'fields {named} have' if len(texts) > 1 else f'field {named} has'
            raise InputError(f'{where}: {have} {total} tokens; data.length {self.length} leaves room for {room}')
        return self._windows_over_longer_text(texts, room, f'{where}: fields {named}')

    def _windows_over_longer_text(self, texts: Sequence[Ids], room: int, where: str) -> list[tuple[Ids, ...]]:
        longer = max(range(len(texts)), key=lambda index: len(texts[index]))
        rest = sum(map(len, texts)) - len(texts[longer])
        if rest > room // 2:
            raise InputError(
                f'{where}: the shorter text has {rest} tokens; windows of the longer one need half of the {room} that '
                f'data.length {self.length} leaves'
            )
        width = room - rest
        starts = window_starts(len(texts[longer]), width, self.stride)
        windows = [texts[longer][start : start + width] for start in starts]
        return [tuple(one if index == longer else ids for index, ids in enumerate(texts)) for one in windows]


class OverlongPolicy(Protocol):
    """The interface of a rule for texts that are too long: the value of `examples.overlong`, and the length limit in
    words."""

    @property
    def policy(self) -> str: ...

    @property
    def limit_in_words(self) -> str: ...


class OverlongCounts:
    """Counts the rows that are too long in each file, and writes notes about them."""

    def __init__(self, rule: OverlongPolicy) -> None:
        self.rule = rule
        self.rows: collections.Counter[str] = collections.Counter()
        self.overlong: collections.Counter[str] = collections.Counter()
        # number of rows or windows made from rows that were too long
        self.made: collections.Counter[str] = collections.Counter()

    def count_row(self, file: str, *, is_overlong: bool, made: int) -> None:
        """Counts one row of a file, and whether it is too long; an empty file name means that the row comes from no
        file."""
        self.rows[file] += 1
        if is_overlong:
            self.overlong[file] += 1
            self.made[file] += made

    def notes(self) -> dict[str, str]:
        """Returns {file: note}, with a note for each file that has rows that are too long.

        If there are more than `MOST_NOTES` such files, the only note gives the totals of all files.
        """
        files = list(self.overlong)
        if len(files) <= MOST_NOTES:
            return {file: self._overlong_note(file or 'input', [file]) for file in files}
        return {files[0]: self._overlong_note(f'{len(self.rows)} files, the first {min(self.rows)}', list(self.rows))}

    def _overlong_note(self, name: str, files: Sequence[str]) -> str:
        rows, overlong, made = (sum(map(one.__getitem__, files)) for one in (self.rows, self.overlong, self.made))
        fate = {'truncate': 'were cut', 'skip': 'were left out', 'windows': f'became {made} windows'}[self.rule.policy]
        return f'{name}: {overlong} of {rows} rows have more than {self.rule.limit_in_words} and {fate}'


def truncation_notes(questions: Sequence[EncodedText], places: Sequence[str], limit: int) -> dict[str, str]:
    """Returns {note: note} with one note about the questions that are cut to `limit` tokens; {} if none is cut."""
    cut = [place for question, place in zip(questions, places, strict=True) if len(question) > limit]
    if not cut:
        return {}
    line = f'{len(cut)} of {len(places)} questions have more than examples.question_length {limit} tokens and were cut'
    return {f'{line}, the first: {cut[0]}': f'{line}, the first: {cut[0]}'}
