"""Chooses which tokens of a row a masked language model predicts, and what replaces them in the input.

BERT (Devlin et al. 2018, arXiv:1810.04805) predicts 15 % of the tokens. Of these, 80 % are replaced by [MASK], 10 % by
a random id, and 10 % stay. With whole words, all pieces of a word are chosen together. With n-grams (ALBERT, Lan et al.
2019, arXiv:1909.11942), runs of 1 to N whole words are chosen; the probability of n words is proportional to 1/n.

Special tokens and padding are never chosen. A random id is uniform over the ordinary ids, so the special tokens of a
row keep their meaning (BERT: uniform over all ids).
"""

import bisect
import dataclasses
import itertools

import numpy as np

from efficient_attention.config.data import DataConfig
from efficient_attention.data.tokenizers.vocabulary import Vocabulary


def prediction_count(tokens: int, mask_rate: float, max_masked: int) -> int:
    """Returns how many tokens are predicted in a row of `tokens` tokens, at least 1; special tokens count as tokens, as
    in BERT."""
    return min(max_masked, max(1, round(tokens * mask_rate)))


class Masker:
    """Masks rows of one vocabulary at random, as the config says."""

    def __init__(self, vocabulary: Vocabulary, config: DataConfig) -> None:
        self._config = config
        self._mask = vocabulary.mask
        self._is_continuation = np.asarray(vocabulary.is_continuation)
        self._is_maskable = np.ones(vocabulary.size, bool)
        frame = (vocabulary.pad, vocabulary.cls, vocabulary.sep, vocabulary.mask)
        self._is_maskable[[*vocabulary.special, *frame]] = False
        self._ordinary = np.flatnonzero(self._is_maskable).astype(np.int32)

    def __call__(self, tokens_L: np.ndarray, used: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns the row with masked tokens, and the positions, original ids and weights of the tokens to predict.

        tokens int32 [L]; masked_positions and masked_tokens int32 [P]; masked_weights float32 [P].

        Positions are sorted. Unused entries have position 0, token 0, weight 0. A word is masked
        as a whole or not at all, so whole words and n-grams may give fewer predictions than the share, or none.

        Args:
            tokens_L: int32 [L], the row.
            used: tokens of the row that are not padding.
            rng: source of the random numbers.
        """
        config = self._config
        budget = prediction_count(used, config.mask_rate, config.max_masked)
        candidates = np.flatnonzero(self._is_maskable[tokens_L])
        if config.mask_unit == 'token':
            positions = np.sort(rng.permutation(candidates)[:budget])
        else:
            words = find_words(candidates, self._is_continuation[tokens_L[candidates]])
            longest = config.max_ngram if config.mask_unit == 'ngram' else 1
            chosen = np.zeros(candidates.size, bool)
            for start, stop in choose_word_runs(words, budget, longest, rng):
                chosen[start:stop] = True
            positions = candidates[chosen]
        return self._mask_positions(tokens_L, positions, rng)

    def _mask_positions(
        self, tokens_L: np.ndarray, positions: np.ndarray, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        count = positions.size
        masked = {name: np.zeros(self._config.max_masked, np.int32) for name in ('masked_positions', 'masked_tokens')}
        masked['masked_weights'] = np.zeros(self._config.max_masked, np.float32)
        masked['masked_positions'][:count] = positions
        masked['masked_tokens'][:count] = tokens_L[positions]
        masked['masked_weights'][:count] = 1
        masked['tokens'] = tokens_L.copy()
        masked['tokens'][positions] = self._replacements(tokens_L[positions], rng)
        return masked

    def _replacements(self, originals: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Returns the ids that replace the chosen tokens in the input: the mask, a random id, or the original id."""
        draw, which = rng.random((2, originals.size))
        random_ids = self._ordinary[(which * self._ordinary.size).astype(np.int64)]
        is_mask = draw < self._config.mask_token_share
        is_random = draw < self._config.mask_token_share + self._config.random_token_share
        return np.where(is_mask, self._mask, np.where(is_random, random_ids, originals))


@dataclasses.dataclass(frozen=True)
class MaskableWords:
    """The whole words among the maskable tokens of a row, and the end of each run of words without a special token
    between them.

    Attributes:
        bounds: word w is candidates bounds[w]:bounds[w + 1].
        stretch_ends: for each word, the end of its run of words without a special token in between.
    """

    bounds: list[int]
    stretch_ends: list[int]


def find_words(candidates: np.ndarray, is_continuation: np.ndarray) -> MaskableWords:
    """Groups sorted maskable positions into words; a word piece after a special token starts a new word."""
    if not candidates.size:
        return MaskableWords([0], [])
    is_after_gap = np.diff(candidates, prepend=-2) > 1
    firsts = np.flatnonzero(is_after_gap | ~is_continuation)
    stretch = np.cumsum(is_after_gap)[firsts]
    stretch_ends = np.searchsorted(stretch, stretch, side='right')
    return MaskableWords([*firsts.tolist(), candidates.size], stretch_ends.tolist())


def choose_word_runs(
    words: MaskableWords, budget: int, longest: int, rng: np.random.Generator
) -> list[tuple[int, int]]:
    """Chooses random runs of 1 to `longest` whole words, with at most `budget` tokens in total; returns them as index
    ranges of maskable tokens.

    Runs start at words in random order. A run that overlaps a chosen one is dropped (ALBERT's test for overlap; the
    other test in its code has no effect). A run that exceeds the budget is shortened word by word. Runs do not cross
    special tokens.
    """
    bounds = words.bounds
    count = len(words.stretch_ends)
    cumulative = list(itertools.accumulate(1 / n for n in range(1, longest + 1)))
    is_chosen = bytearray(count)
    runs = []
    for first, uniform in zip(rng.permutation(count).tolist(), rng.random(count).tolist(), strict=True):
        if budget == 0:
            break
        reach = min(longest, words.stretch_ends[first] - first)
        stop = first + 1 + bisect.bisect_right(cumulative, uniform * cumulative[reach - 1], hi=reach - 1)
        while stop > first and bounds[stop] - bounds[first] > budget:
            stop -= 1
        if stop == first or any(is_chosen[first:stop]):
            continue
        is_chosen[first:stop] = b'\1' * (stop - first)
        runs.append((bounds[first], bounds[stop]))
        budget -= bounds[stop] - bounds[first]
    return runs
