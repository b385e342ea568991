"""Applies T5's span corruption: a sentinel token replaces each hidden span of a text, and the target lists each
sentinel with its span.

Raffel et al. 2019, arXiv 1910.10683, section 3.1.4, by the rules of its published code (`random_spans_noise_mask` and
`random_spans_helper`). Of L tokens, n = round(density L) are in round(n / mean span) spans; both numbers are at least
1. Lengths of spans and of the kept parts between them are uniformly random. A kept part comes first, and no two spans
touch.
"""

import dataclasses

import numpy as np

from efficient_attention.data.corpus.noise_interface import Noise, TextToNoise
from efficient_attention.errors import InputError


@dataclasses.dataclass(frozen=True, eq=False)
class SpanCorruption(Noise):
    """T5's span corruption, for texts of at most `tokens` tokens.

    Attributes:
        density: share of the tokens in spans.
        mean_span: mean length of a span, in tokens.
        sentinels: int32, ids for the first span, the second, ...; enough for a text of `tokens` tokens.
        tokens: most tokens of a text.
        lengths: tokens of the source and of the target of such a text, without begin and end tokens.
    """

    density: float
    mean_span: float
    sentinels: np.ndarray
    tokens: int
    lengths: tuple[int, int]
    crosses_documents: bool = True  # As in T5, texts are cut from the concatenation of all documents.

    def __call__(self, text: TextToNoise, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Returns the text with sentinels as source, and the hidden spans as target, without begin and end tokens."""
        hidden, spans = span_counts(len(text.tokens), self.density, self.mean_span)
        kept_S = random_partition(len(text.tokens) - hidden, spans, rng)
        hidden_S = random_partition(hidden, spans, rng)
        return corrupt_spans(text.tokens, kept_S, hidden_S, self.sentinels[:spans])


def corrupt_spans(
    tokens_T: np.ndarray, kept_S: np.ndarray, hidden_S: np.ndarray, sentinels_S: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Replaces the hidden spans of a text by sentinels; kept and hidden spans alternate, with lengths kept_S[0],
    hidden_S[0], kept_S[1], ... Returns source and target."""
    lengths = np.stack([kept_S, hidden_S], axis=1).ravel()
    is_hidden_T = np.repeat(np.arange(lengths.size) % 2 == 1, lengths)
    first_S = np.cumsum(lengths)[0::2]  # position of each hidden span's first token
    marked_T, is_source_T = tokens_T.copy(), ~is_hidden_T
    marked_T[first_S], is_source_T[first_S] = sentinels_S, True
    target = np.insert(tokens_T[is_hidden_T], np.cumsum(hidden_S) - hidden_S, sentinels_S)
    return marked_T[is_source_T], target


def random_partition(total: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Returns `count` random lengths of at least 1 that add up to `total`, int64 [count]; all such lists are equally
    likely."""
    borders = np.sort(rng.choice(total - 1, count - 1, replace=False, shuffle=False)) + 1
    return np.diff(borders, prepend=0, append=total)


def span_counts(tokens: int, density: float, mean_span: float) -> tuple[int, int]:
    """Returns how many tokens of a text are hidden, and in how many spans; the text must have at least 2 tokens."""
    hidden = min(max(round(tokens * density), 1), tokens - 1)
    return hidden, min(max(round(hidden / mean_span), 1), hidden, tokens - hidden)


def noised_lengths(tokens: int, density: float, mean_span: float) -> tuple[int, int]:
    """Returns the numbers of source and target tokens for a text of `tokens` tokens; sentinels count, begin and end
    tokens do not."""
    hidden, spans = span_counts(tokens, density, mean_span)
    return tokens - hidden + spans, hidden + spans


def max_uncorrupted_tokens(room: tuple[int, int], density: float, mean_span: float) -> int:
    """Returns the length of the longest text whose source and target fit into the limits `room`; for T5's limits of 511
    source and 113 target tokens, this is 568 tokens.

    Args:
        room: maximum number of tokens of a source and of a target, without begin and end tokens.
        density: see `SpanCorruption`.
        mean_span: see `SpanCorruption`.

    Raises:
        InputError: no text fits.
    """

    def fits(tokens: int) -> bool:
        return all(n <= most for n, most in zip(noised_lengths(tokens, density, mean_span), room, strict=True))

    # A text longer than the sum of both limits never fits: source and target together are at least as long as the text.
    found = next((tokens for tokens in range(sum(room), 1, -1) if fits(tokens)), 0)
    if not found:
        raise InputError(
            f'noise.name span_corruption: no text fits {room[0]} tokens of a source and {room[1]} of a target'
        )
    return found
