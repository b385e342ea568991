"""Settings of decoding (beam search, greedy or sampling): number of beams, text lengths, stopping rule, and rules that
restrict the next token.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from efficient_attention.config.evaluation import PENALTIES, STOPS
from efficient_attention.config.value_checks import check_in_interval, check_one_of
from efficient_attention.errors import InputError, require
from efficient_attention.inference.sampling import Sampling


@dataclasses.dataclass(frozen=True)
class TokenRules:
    """Rules that restrict or penalise the next token of a text, with the same meaning as in transformers' `generate`.

    The text is every token that the decoder has read, including its start symbol.

    Args:
        repetition_penalty: for tokens already in the text, negative scores are multiplied by the penalty and other
            scores divided by it. Above 1 it makes repetitions rarer (Keskar et al. 2019, arXiv 1909.05858, section
            4.1). The score is the log-probability in a beam search, otherwise the logit.
        no_repeat_ngram_size: no sequence of this many tokens occurs twice (Paulus et al. 2017, arXiv 1705.04304);
            0 = no such rule.
        bad_words_ids: token sequences that a text never contains.
        suppress_tokens: tokens that a text never contains.
        begin_suppress_tokens: tokens that no text begins with. If the first token is forced, they cannot come second.

    Raises:
        InputError: a value is out of range, or a list contains something other than ids.
    """

    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_in_interval('repetition_penalty', self.repetition_penalty, 0, low_is_open=True)
        check_in_interval('no_repeat_ngram_size', self.no_repeat_ngram_size, 0)
        words = self.bad_words_ids
        if not isinstance(words, Sequence) or isinstance(words, str):
            raise InputError(f'bad_words_ids is {words!r}; it must be a list of lists of ids, such as [[5, 6], [7]]')
        # JAX caches compiled programs by these settings, so they must be hashable: lists become tuples.
        words = tuple(parse_id_list('bad_words_ids', word) for word in words)
        require(all(words), 'bad_words_ids', self.bad_words_ids, 'lists of at least one id')
        object.__setattr__(self, 'bad_words_ids', words)
        for name in ('suppress_tokens', 'begin_suppress_tokens'):
            object.__setattr__(self, name, parse_id_list(name, getattr(self, name)))

    @property
    def uses_generated_tokens(self) -> bool:
        """Whether any of these rules depends on the tokens that the text already contains."""
        return self.repetition_penalty != 1 or self.no_repeat_ngram_size > 0 or any(map(len, self.bad_words_ids))

    def rule_token_ids(self) -> dict[str, set[int]]:
        """Returns the token ids in each field that lists ids, such as `bad_words_ids`, by field name."""
        words = {id for word in self.bad_words_ids for id in word}
        suppressed = {name: set(getattr(self, name)) for name in ('suppress_tokens', 'begin_suppress_tokens')}
        return {'bad_words_ids': words, **suppressed}


def parse_id_list(name: str, value: Any) -> tuple[int, ...]:
    """Returns a list of token ids as a tuple; raises InputError if the value is anything else."""
    if not isinstance(value, Sequence) or isinstance(value, str) or any(type(id) is not int or id < 0 for id in value):
        raise InputError(f'{name} has {value!r}; it must be a list of ids, whole numbers from 0 on')
    return tuple(value)


NO_RULES = TokenRules()


@dataclasses.dataclass(frozen=True)
class SearchSettings:
    """Settings by which text continuations are searched and scored.

    Below, |Y| is the number of generated tokens, including the end symbol.

    Args:
        beams: open beams per row; 1 = greedy decoding.
        best: finished texts kept per row, at most `beams`.
        penalty: divisor of a text's summed log-probability, which gives its score: 'gnmt' ((5 + |Y|) / 6)^alpha (Wu et
            al. 2016, equation 14; T5) | 'length' |Y|^alpha (transformers, fairseq).
        alpha: exponent of the penalty; above 0 favours long texts, 0 = no penalty, below 0 favours short texts.
        max_tokens: maximum number of generated tokens; a beam with this many tokens is finished as it is.
        min_tokens: minimum number of tokens before the end symbol.
        end: id of the end symbol; -1 = none.
        first: id of a forced first token, with probability 1; -1 = none (released BART models force <s>).
        forces_end: the end symbol is forced, with probability 1, as the last of `max_tokens` tokens (BART).
        stop: when a row is done. 'exact' = no open beam can reach a kept score | 'early' = no open beam would beat the
            lowest of the finished scores (as many as beams) if it ended now. 'early' is a heuristic and the default of
            transformers; with alpha 0 it finds the same texts as 'exact' | 'first' = as many texts have ended as there
            are beams. The `early_stopping` values of transformers for these are 'never', False and True.
        more_ends: further ids that end a text.
        rules: rules on which tokens may follow.
        sampling: how each token is sampled; None = search for the most probable texts.

    Raises:
        InputError: a value is out of range, or two values contradict each other.
    """

    beams: int = 4
    best: int = 1
    penalty: str = 'gnmt'
    alpha: float = 0.6
    max_tokens: int = 128
    min_tokens: int = 0
    end: int = 1
    first: int = -1
    forces_end: bool = False
    stop: str = 'exact'
    more_ends: tuple[int, ...] = ()
    rules: TokenRules = NO_RULES
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        check_in_interval('beams', self.beams, 1)
        require(1 <= self.best <= self.beams, 'best', self.best, f'1 to {self.beams}, the beams')
        check_one_of('penalty', self.penalty, PENALTIES)
        check_one_of('stop', self.stop, STOPS)
        check_in_interval('alpha', self.alpha, -10, 10)
        check_in_interval('max_tokens', self.max_tokens, 1)
        allowed = f'0 or more and below max_tokens {self.max_tokens}'
        require(0 <= self.min_tokens < self.max_tokens, 'min_tokens', self.min_tokens, allowed)
        for name in ('end', 'first'):
            require(getattr(self, name) >= -1, name, getattr(self, name), '-1 or an id')
        require(self.end >= 0 or not self.forces_end, 'forces_end', True, 'False without an end symbol')
        require(self.end >= 0 or not self.more_ends, 'more_ends', self.more_ends, 'empty without an end symbol')
        require(self.beams == 1 or not self.sampling, 'beams', self.beams, '1 where tokens are sampled (do_sample)')
        forced = {self.first, self.end} if self.forces_end else {self.first}
        if both := sorted(forced & set(self.rules.suppress_tokens)):
            raise InputError(f'suppress_tokens has the id {both[0]}, which the model forces; remove it')

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """The token ids that end a text; () = no id ends a text."""
        return (self.end, *self.more_ends) if self.end >= 0 else ()

    @property
    def max_finished_hypotheses(self) -> int:
        """The number of finished texts that the search keeps per batch row while it runs."""
        return self.best if self.stop == 'exact' else self.beams

    def check_ids(self, size: int) -> None:
        """Raises InputError if a token id in these settings is outside a vocabulary of this size."""
        named = {
            'end': {self.end},
            'first': {self.first},
            'more_ends': set(self.more_ends),
            **self.rules.rule_token_ids(),
        }
        for name, ids in named.items():
            if max(ids, default=-1) >= size:
                raise InputError(f'{name} is {max(ids)}; the model has {size} ids')

    def length_penalty_divisor(self, length: Array) -> Array:
        """Returns the length penalty for texts of this length, float32; a text's score is its summed log-probability
        divided by the penalty.
        """
        length = length.astype(jnp.float32)
        return ((5.0 + length) / 6.0 if self.penalty == 'gnmt' else length) ** self.alpha


class SamplingSeeds(NamedTuple):
    """The random state of sampled texts: one seed for all texts, and a number for each text, int32 [B]."""

    seed: Array | int
    number_B: Array | np.ndarray


class TokenLimits(NamedTuple):
    """Limits of a search that can change without recompilation: allowed token ids, bool [V], and the maximum tokens per
    batch row.

    `most_B` is int32, from 0 to `SearchSettings.max_tokens`. `draws` is required if tokens are sampled.
    """

    may_follow_V: Array
    most_B: Array
    draws: SamplingSeeds | None = None


def no_limits(vocab_size: int, rows: int, search: SearchSettings) -> TokenLimits:
    """Returns limits that allow every token id, and up to `search.max_tokens` tokens in every batch row."""
    return TokenLimits(jnp.ones(vocab_size, bool), jnp.full(rows, search.max_tokens, jnp.int32))
