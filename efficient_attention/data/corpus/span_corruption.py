"""T5's span corruption: spans of a text become sentinels, and the target tells what each of them stands for.

Raffel et al. 2019, arXiv 1910.10683, section 3.1.4, by the rules of its published code (`random_spans_noise_mask` and
`random_spans_helper`): of L tokens round(density L) are in round(that / mean span) spans, at least one each. Spans and
what is kept between them are cut uniformly at random, a kept stretch first, so that no two spans touch.
"""

import dataclasses

import numpy as np

from efficient_attention.data.corpus.noise import Noise, NoisedText
from efficient_attention.errors import InputError


@dataclasses.dataclass(frozen=True, eq=False)
class SpanCorruption(Noise):
    """Span corruption of texts of `tokens` tokens or fewer.

    Attributes:
        density: share of the tokens in spans.
        mean_span: tokens.
        sentinels: int32, the ids for the first span, the second, ...; as many as `tokens` tokens have spans.
        tokens: the most tokens of a text.
        lengths: tokens of the source and of the target of such a text, ends not counted.
    """

    density: float
    mean_span: float
    sentinels: np.ndarray
    tokens: int
    lengths: tuple[int, int]
    crosses_documents: bool = True  # texts are cut from all documents one after another, as in T5

    def __call__(self, text: NoisedText, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """See `Noise`."""
        hidden, spans = span_counts(len(text.tokens), self.density, self.mean_span)
        kept_S = random_parts(len(text.tokens) - hidden, spans, rng)
        hidden_S = random_parts(hidden, spans, rng)
        return corrupted(text.tokens, kept_S, hidden_S, self.sentinels[:spans])


def corrupted(
    tokens_T: np.ndarray, kept_S: np.ndarray, hidden_S: np.ndarray, sentinels_S: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Source and target of a text of which kept_S[0] tokens stay, hidden_S[0] are hidden, kept_S[1] stay, ..."""
    lengths = np.stack([kept_S, hidden_S], axis=1).ravel()
    is_hidden_T = np.repeat(np.arange(lengths.size) % 2 == 1, lengths)
    first_S = np.cumsum(lengths)[0::2]  # where each span begins
    marked_T, is_source_T = tokens_T.copy(), ~is_hidden_T
    marked_T[first_S], is_source_T[first_S] = sentinels_S, True
    target = np.insert(tokens_T[is_hidden_T], np.cumsum(hidden_S) - hidden_S, sentinels_S)
    return marked_T[is_source_T], target


def random_parts(total: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """int64 [count], lengths of at least 1 that add up to `total`, each such list as likely as any other."""
    borders = np.sort(rng.choice(total - 1, count - 1, replace=False, shuffle=False)) + 1
    return np.diff(borders, prepend=0, append=total)


def span_counts(tokens: int, density: float, mean_span: float) -> tuple[int, int]:
    """How many of at least 2 tokens are in spans, and how many spans there are."""
    hidden = min(max(round(tokens * density), 1), tokens - 1)
    return hidden, min(max(round(hidden / mean_span), 1), hidden, tokens - hidden)


def noised_lengths(tokens: int, density: float, mean_span: float) -> tuple[int, int]:
    """Tokens of the source and of the target of a text of so many, ends not counted: a sentinel a span in both."""
    hidden, spans = span_counts(tokens, density, mean_span)
    return tokens - hidden + spans, hidden + spans


def most_tokens(room: tuple[int, int], density: float, mean_span: float) -> int:
    """The most tokens of a text whose source and target both have room: 568 where T5 has 511 and 113 beside the ends.

    Args:
        room: tokens of a source and of a target, ends not counted.
        density: see `SpanCorruption`.
        mean_span: likewise.

    Raises:
        InputError: there is room for no text.
    """

    def fits(tokens: int) -> bool:
        return all(n <= most for n, most in zip(noised_lengths(tokens, density, mean_span), room, strict=True))

    # Source and target together have no fewer tokens than the text.
    found = next((tokens for tokens in range(sum(room), 1, -1) if fits(tokens)), 0)
    if not found:
        raise InputError(
            f'noise.name span_corruption: no text fits {room[0]} tokens of a source and {room[1]} of a target'
        )
    return found
