"""Applies BART's noise to a text: permutes sentences, masks spans of words, masks or deletes tokens, and rotates the
text.

Lewis et al. 2019, arXiv 1910.13461, section 2.2. Of W words, ceil(infilling W) are hidden in whole-word spans. Span
lengths are sampled from a Poisson distribution until they reach this number; the last span is cut. A span of length 0
is a mask between two words. In the published code (fairseq's `DenoisingDataset`) spans may overlap, which hides fewer
words. Here spans do not overlap, but may touch; their positions are uniform over all possible placements. There are
never more spans than hidden words, so a source is never longer than its text.
"""

import dataclasses
import math

import numpy as np

from efficient_attention.config.noise import NoiseConfig
from efficient_attention.data.corpus.noise_interface import Noise, TextToNoise

MASKED = -1  # value for a mask token in an array of token positions


@dataclasses.dataclass(frozen=True, eq=False)
class BartNoise(Noise):
    """BART's noise, for texts of at most `tokens` tokens; the source is the noised text, and the target is the original
    text.

    Attributes:
        config: the fields `mean_span`, `permutation`, `infilling`, `masking`, `deletion` and `rotation` are read.
        mask: id of the mask.
        is_continuation: bool [V], whether a piece continues a word.
        tokens: most tokens of a text.
        lengths: most tokens of a source and of a target, both as of a text.
    """

    config: NoiseConfig
    mask: int
    is_continuation: np.ndarray
    tokens: int
    lengths: tuple[int, int]
    crosses_documents: bool = False

    def __call__(self, text: TextToNoise, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Returns the noised text as source and the original text as target, without begin and end tokens."""
        places = self.noised_token_positions(text, rng)
        return np.where(places == MASKED, np.int32(self.mask), text.tokens[places]), text.tokens

    def noised_token_positions(self, text: TextToNoise, rng: np.random.Generator) -> np.ndarray:
        """Returns, for each token of the noised text, its position in the original text; -1 (`MASKED`) for a mask
        token."""
        config = self.config
        is_start = ~self.is_continuation[text.tokens]
        is_start[text.sentence_starts] = True
        places = permute_sentences(text.sentence_starts, len(text.tokens), config.permutation, rng)
        places = infill_spans(places, is_start[places], config.infilling, config.mean_span, rng)
        places[choose_token_positions(places, config.masking, rng)] = MASKED
        places = np.delete(places, choose_token_positions(places, config.deletion, rng))
        is_rotated = config.rotation > rng.random()
        return np.roll(places, -rng.integers(len(places))) if is_rotated and len(places) else places


def permute_sentences(starts: np.ndarray, tokens: int, share: float, rng: np.random.Generator) -> np.ndarray:
    """Shuffles a random share of a text's sentences, rounded up to whole sentences; returns the positions of all tokens
    in the new order.

    Sentences begin at `starts`; the text has `tokens` tokens.
    """
    chosen = rng.permutation(len(starts))[: math.ceil(share * len(starts))]
    order = np.arange(len(starts))
    order[chosen] = rng.permutation(chosen)
    lengths = np.diff(starts, append=tokens)[order]
    return np.repeat(starts[order] - (np.cumsum(lengths) - lengths), lengths) + np.arange(tokens)


def infill_spans(
    places: np.ndarray, is_start: np.ndarray, share: float, mean_span: float, rng: np.random.Generator
) -> np.ndarray:
    """Replaces random spans of whole words by one mask each; the spans contain the given share of all words, rounded
    up. Returns the new token positions.

    Args:
        places: positions of tokens.
        is_start: whether a word begins at each of them; the first one must be True.
        share: share of the words in spans.
        mean_span: mean length of a span, in words.
        rng: source of the random numbers.
    """
    starts = np.flatnonzero(is_start)
    hidden = math.ceil(share * len(starts))
    if not hidden:
        return places
    lengths_S = span_lengths(hidden, mean_span, rng)
    first_S = random_span_starts(lengths_S, len(starts), rng)
    bounds = np.append(starts, len(places))
    begin_S, end_S = bounds[first_S], bounds[first_S + lengths_S]
    steps = np.zeros(len(places) + 1, np.int64)
    np.add.at(steps, begin_S, 1)
    np.add.at(steps, end_S, -1)
    is_kept = np.cumsum(steps[:-1]) == 0
    kept_before = np.append(0, np.cumsum(is_kept))
    return np.insert(places[is_kept], kept_before[begin_S], MASKED)


def span_lengths(words: int, mean: float, rng: np.random.Generator) -> np.ndarray:
    """Samples span lengths from a Poisson distribution until they add up to `words`; the last span is shortened.
    Returns them in random order."""
    lengths = rng.poisson(mean, words)
    ends = np.cumsum(lengths)
    last = min(int(np.searchsorted(ends, words)), words - 1)
    lengths[last] += words - ends[last]
    return rng.permutation(lengths[: last + 1])


def random_span_starts(lengths_S: np.ndarray, words: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the first word of each span in rising order; all placements of the spans without overlap are equally
    likely."""
    spans, kept = len(lengths_S), words - lengths_S.sum()
    slots_S = np.sort(rng.choice(kept + spans, spans, replace=False, shuffle=False))
    return slots_S - np.arange(spans) + np.cumsum(lengths_S) - lengths_S


def choose_token_positions(places: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Returns the indices of a random sample of the tokens that are not masks; `share` of these tokens, rounded, are in
    the sample."""
    if not share:
        return np.zeros(0, np.int64)
    tokens = np.flatnonzero(places != MASKED)
    return rng.choice(tokens, round(share * len(tokens)), replace=False)
