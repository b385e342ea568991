"""Defines what a scorer reads and returns: pairs of a context and a continuation, whole texts, and their scores.

The rule for the tokens at the seam of a pair is the rule of lm-evaluation-harness, so that scores compare: white space
at the end of the context moves to the continuation, both are encoded together, and the ids are split after as many
tokens as the context has. An empty context means the document separator.
"""

import abc
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from efficient_attention.errors import InputError

SEAM = (
    'context and continuation are encoded together, then split; spaces at the end of the context belong to the '
    'continuation; an empty context is the document separator'
)
ALONE = 'source and target are encoded separately; the source ends with its end symbol, the target has none'
WHOLE = (
    'pseudo-log-likelihood: each token is predicted with itself and the later tokens of its word masked (Kauf and '
    'Ivanova 2023)'
)


class Pair(NamedTuple):
    """A context, and the continuation to score after it."""

    context: str
    continuation: str


class PairTokens(NamedTuple):
    """The token ids of a pair; the continuation has at least one, and only an encoder's context is empty."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]

    @property
    def positions(self) -> int:
        """Returns how many tokens the model reads; the last token is only predicted."""
        return len(self.context) + len(self.continuation) - 1


class PairScore(NamedTuple):
    """The score of a continuation after its context.

    Attributes:
        log_prob: natural logarithm of the continuation's probability, summed over its tokens.
        is_greedy: whether each of its tokens is the most probable one, so that greedy decoding gives the continuation.
        tokens: number of tokens of the continuation.
        characters: number of its characters.
        bytes: number of its bytes in UTF-8.
    """

    log_prob: float
    is_greedy: bool
    tokens: int
    characters: int
    bytes: int


class TextScore(NamedTuple):
    """The score of a whole text: its log-probability after the document separator, its size in three units, and the
    number of its tokens that the vocabulary lacks.
    """

    log_prob: float
    tokens: int
    characters: int
    bytes: int
    unknown_tokens: int


class Scorer(abc.ABC):
    """Base class of scorers, which compute log-probabilities of texts with one trained model.

    Attributes:
        name: what the scores come from, such as the folder of the model.
        rule: how texts become tokens, for reports.
        longest: maximum number of tokens that the model reads at once; None = no limit.
        unknown: the id of text that the vocabulary lacks; -1 = there is no such text.
        reads_windows: whether a text that is too long for one row may be scored in several.
    """

    name: str
    rule: str = SEAM
    longest: int | None = None
    unknown: int = -1
    reads_windows: bool = False

    @abc.abstractmethod
    def encode(self, pair: Pair) -> PairTokens:
        """Returns the tokens of a pair; raises InputError if the continuation has none."""

    @abc.abstractmethod
    def score_tokens(self, rows: Sequence[PairTokens]) -> list[tuple[float, bool]]:
        """Returns each row's log-probability and whether greedy decoding gives its continuation."""

    def is_known(self, text: str) -> bool:
        """Returns whether the vocabulary has every token of a text."""
        return self.unknown < 0 or self.unknown not in self.encode(Pair('', text)).continuation

    def generate(self, prompts: Sequence[str], most_tokens: Sequence[int]) -> list[str]:  # noqa: ARG002  only some can
        """Returns what greedy decoding adds to each prompt, up to the end of the line or the prompt's most tokens.

        Raises:
            InputError: the model does not generate text token by token.
        """
        raise InputError(f'{self.name} cannot generate the answer; this problem needs a language model')

    def score(self, pairs: Iterable[Pair | tuple[str, str]]) -> list[PairScore]:
        """Returns the score of each pair, in their order. A pair gives the same score by itself and in a list.

        A continuation with a token that the vocabulary lacks is never greedy.

        Raises:
            InputError: an empty continuation, or a pair with more tokens than the model can read; the message says
                which pair. Also if the model's log-probability is not a number.
        """
        given = [as_pair(number, pair) for number, pair in enumerate(pairs, start=1)]
        rows = [self.fitting_tokens(number, pair) for number, pair in enumerate(given, start=1)]
        return [
            PairScore(
                log_prob,
                is_greedy and self.unknown not in row.continuation,
                len(row.continuation),
                *text_sizes(pair.continuation),
            )
            for pair, row, (log_prob, is_greedy) in zip(given, rows, self.finite_scores(rows), strict=True)
        ]

    def finite_scores(self, rows: Sequence[PairTokens]) -> list[tuple[float, bool]]:
        """Returns the result of `score_tokens`; raises InputError if a log-probability is not a number."""
        found = self.score_tokens(rows)
        for number, (log_prob, _) in enumerate(found, start=1):
            if math.isnan(log_prob):
                raise InputError(f'the log-probability of text {number} of {len(found)} is not a number (NaN)')
        return found

    def fitting_tokens(self, number: int, pair: Pair) -> PairTokens:
        """Returns the tokens of pair number `number`; raises InputError if the model cannot read that many."""
        try:
            row = self.encode(pair)
        except InputError as error:
            raise InputError(f'pair {number}: {error}') from None
        if not self.fits(row):
            raise InputError(f'pair {number} is too long: {self.sizes(row)}')
        return row

    def fits(self, row: PairTokens) -> bool:
        """Returns whether the model can read the pair in one row."""
        return self.longest is None or row.positions <= self.longest

    def sizes(self, row: PairTokens) -> str:
        """Returns how many tokens a pair has and how many the model reads, for messages."""
        return f'{row.positions} tokens; the model reads {self.longest} at most'

    def score_texts(self, texts: Sequence[str], *, context: int = 0, stride: int = 0) -> list[TextScore]:
        """Returns the score of each whole text; each of its tokens is predicted once.

        Args:
            texts: one document each.
            context: tokens that the model sees at once; 0 = as many as it can, or 1,024 if there is no limit.
            stride: tokens by which the window moves; 0 = `context`: windows do not overlap, except that the last one
                moves back until it is full.

        Raises:
            InputError: a text without tokens, or a number out of range. Also if the model cannot read a text in several
                windows, and the text does not fit or a window is asked for.
        """
        if isinstance(texts, str):
            raise InputError(f'{texts[:40]!r} is one text; give a list of texts')
        if not self.reads_windows:
            if context or stride:
                raise InputError(f'{self.name} reads each text as one row, so context and stride have no effect')
            rows = [self.fitting_tokens(number, Pair('', text)) for number, text in enumerate(texts, start=1)]
            return self.sum_windows(texts, rows, list(range(len(texts))))
        window = context or self.longest or 1024
        if self.longest is not None and window > self.longest:
            raise InputError(f'context is {window}; the model reads {self.longest} tokens at most')
        step = stride or window
        if not 1 <= step <= window:
            raise InputError(f'stride is {step}; it must be from 1 to the context, {window}')
        rows, owners = [], []
        for number, text in enumerate(texts):
            parts = list(windows_of_text(self.encode(Pair('', text)), window, step))
            rows += parts
            owners += [number] * len(parts)
        return self.sum_windows(texts, rows, owners)

    def sum_windows(self, texts: Sequence[str], rows: Sequence[PairTokens], owners: Sequence[int]) -> list[TextScore]:
        """Returns the score of each text, the sum over its windows; `owners` has the number of each window's text."""
        totals, tokens, unknown = np.zeros(len(texts)), np.zeros(len(texts), int), np.zeros(len(texts), int)
        for number, row, (log_prob, _) in zip(owners, rows, self.finite_scores(rows), strict=True):
            totals[number] += log_prob
            tokens[number] += len(row.continuation)
            unknown[number] += row.continuation.count(self.unknown)
        return [
            TextScore(float(total), int(count), *text_sizes(text), int(lacking))
            for total, count, text, lacking in zip(totals, tokens, texts, unknown, strict=True)
        ]


def as_pair(number: int, value: Any) -> Pair:
    """Returns pair number `number` of a list; raises InputError unless it has a context and a continuation."""
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise InputError(f'pair {number} is {repr(value)[:40]}; give a list of pairs (context, continuation)')
    return Pair(*value)


def text_sizes(text: str) -> tuple[int, int]:
    """Returns the number of characters and of UTF-8 bytes of a text."""
    return len(text), len(text.encode(errors='surrogatepass'))


def move_spaces(pair: Pair) -> Pair:
    """Returns the pair with the white space at the end of the context moved to the continuation."""
    context = pair.context.rstrip()
    return Pair(context, pair.context[len(context) :] + pair.continuation)


def windows_of_text(row: PairTokens, window: int, stride: int) -> Iterator[PairTokens]:
    """Yields windows of a text that predict each of its tokens once; `row.context` is the separator before the text.

    Each window predicts the next `stride` tokens and reads up to `window` tokens.
    """
    ids = (*row.context, *row.continuation)
    first = len(row.context)
    while first < len(ids):
        last = min(first + stride, len(ids))
        start = max(0, last - 1 - window)
        yield PairTokens(ids[start:first], ids[first:last])
        first = last


def number_unique(items: Sequence[Hashable]) -> tuple[list, list[int]]:
    """Returns the different items in order of first occurrence, and each item's index among them."""
    numbers: dict[Hashable, int] = {}
    places = [numbers.setdefault(item, len(numbers)) for item in items]
    return list(numbers), places
