"""What a search of texts is asked for: how many hypotheses, how long they are, which tokens may follow."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from efficient_attention.config.checks import check_one_of, check_within
from efficient_attention.config.evaluation import PENALTIES, STOPS
from efficient_attention.errors import InputError, require
from efficient_attention.inference.sampling import Sampling


@dataclasses.dataclass(frozen=True)
class Rules:
    """Rules on which tokens may follow a text, as in transformers' `generate`.

    The text is all that the decoder has read, including its start symbol.

    Args:
        repetition_penalty: negative scores of tokens of the text are multiplied by it, others divided; above 1
            it makes repetitions rarer (Keskar et al. 2019, arXiv 1909.05858, section 4.1). The score is the
            log-probability in a search by beams, the logit otherwise.
        no_repeat_ngram_size: no sequence of so many tokens comes twice (Paulus et al. 2017, arXiv 1705.04304); 0 = any.
        bad_words_ids: sequences of tokens that a text never has.
        suppress_tokens: tokens that a text never has.
        begin_suppress_tokens: tokens that no text begins with; if the first token is forced, that cannot come second.

    Raises:
        InputError: a value is out of range, or holds something else than ids.
    """

    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_within('repetition_penalty', self.repetition_penalty, 0, low_is_open=True)
        check_within('no_repeat_ngram_size', self.no_repeat_ngram_size, 0)
        words = self.bad_words_ids
        if not isinstance(words, Sequence) or isinstance(words, str):
            raise InputError(f'bad_words_ids is {words!r}; it must be a list of lists of ids, such as [[5, 6], [7]]')
        # Tuples can be hashed, as a key of compiled programs must be.
        words = tuple(ids_in('bad_words_ids', word) for word in words)
        require(all(words), 'bad_words_ids', self.bad_words_ids, 'lists of at least one id')
        object.__setattr__(self, 'bad_words_ids', words)
        for name in ('suppress_tokens', 'begin_suppress_tokens'):
            object.__setattr__(self, name, ids_in(name, getattr(self, name)))

    @property
    def reads_text(self) -> bool:
        """Whether a rule depends on the tokens that a text already has."""
        return self.repetition_penalty != 1 or self.no_repeat_ngram_size > 0 or any(map(len, self.bad_words_ids))

    def ids(self) -> dict[str, set[int]]:
        """The ids that each field names."""
        words = {id for word in self.bad_words_ids for id in word}
        suppressed = {name: set(getattr(self, name)) for name in ('suppress_tokens', 'begin_suppress_tokens')}
        return {'bad_words_ids': words, **suppressed}


def ids_in(name: str, value: Any) -> tuple[int, ...]:
    """The ids of a list; raises InputError where it is none, or holds something else."""
    if not isinstance(value, Sequence) or isinstance(value, str) or any(type(id) is not int or id < 0 for id in value):
        raise InputError(f'{name} has {value!r}; it must be a list of ids, whole numbers from 0 on')
    return tuple(value)


NO_RULES = Rules()


@dataclasses.dataclass(frozen=True)
class Search:
    """How continuations are searched and scored; |Y| counts the tokens made, the end symbol included.

    Args:
        beams: open hypotheses of a row; 1 = greedy decoding.
        best: finished hypotheses that are kept of a row, at most `beams`.
        penalty: what the sum of log-probabilities is divided by for the score: 'gnmt' ((5 + |Y|) / 6)^alpha (Wu et al.
            2016, equation 14; T5) | 'length' |Y|^alpha (transformers, fairseq).
        alpha: of the penalty; above 0 it favours long texts, 0 = none, below 0 short ones.
        max_tokens: most tokens made; a hypothesis of so many is finished as it is.
        min_tokens: fewest tokens before the end symbol.
        end: id of the end symbol; -1 = there is none.
        first: id of the first token, as if its probability were 1; -1 = any (released BART models begin with <s>).
        forces_end: the last of the most tokens is the end symbol, as if its probability were 1 (BART).
        stop: when a row is done. 'exact' = no open hypothesis can reach a kept score | 'early' = none would beat the
            lowest of the finished texts (as many as beams) if it ended now: a guess, the default of transformers. No
            difference without a penalty | 'first' = as many texts have ended as there are beams. In transformers
            `early_stopping` is 'never', False and True.
        more_ends: other ids that end a text, too.
        rules: on which tokens may follow.
        sampling: how each token is drawn; None = the most probable texts are searched.

    Raises:
        InputError: a value is out of range, or two contradict each other.
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
    rules: Rules = NO_RULES
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        check_within('beams', self.beams, 1)
        require(1 <= self.best <= self.beams, 'best', self.best, f'1 to {self.beams}, the beams')
        check_one_of('penalty', self.penalty, PENALTIES)
        check_one_of('stop', self.stop, STOPS)
        check_within('alpha', self.alpha, -10, 10)
        check_within('max_tokens', self.max_tokens, 1)
        allowed = f'0 or more and below max_tokens {self.max_tokens}'
        require(0 <= self.min_tokens < self.max_tokens, 'min_tokens', self.min_tokens, allowed)
        for name in ('end', 'first'):
            require(getattr(self, name) >= -1, name, getattr(self, name), '-1 or an id')
        require(self.end >= 0 or not self.forces_end, 'forces_end', True, 'False without an end symbol')
        require(self.end >= 0 or not self.more_ends, 'more_ends', self.more_ends, 'empty without an end symbol')
        require(self.beams == 1 or not self.sampling, 'beams', self.beams, '1 where tokens are drawn (do_sample)')
        forced = {self.first, self.end} if self.forces_end else {self.first}
        if both := sorted(forced & set(self.rules.suppress_tokens)):
            raise InputError(f'suppress_tokens has the id {both[0]}, which the model forces; take it out of them')

    @property
    def ends(self) -> tuple[int, ...]:
        """The ids that end a text."""
        return (self.end, *self.more_ends) if self.end >= 0 else ()

    @property
    def kept(self) -> int:
        """Finished hypotheses that are kept of a row during the search."""
        return self.best if self.stop == 'exact' else self.beams

    def check_ids(self, size: int) -> None:
        """Raises InputError where an id is none of a vocabulary of this size."""
        named = {'end': {self.end}, 'first': {self.first}, 'more_ends': set(self.more_ends), **self.rules.ids()}
        for name, ids in named.items():
            if max(ids, default=-1) >= size:
                raise InputError(f'{name} is {max(ids)}; the model has {size} ids')

    def divisor(self, length: Array) -> Array:
        """float32: what the sum of the log-probabilities of so many tokens is divided by."""
        length = length.astype(jnp.float32)
        return ((5.0 + length) / 6.0 if self.penalty == 'gnmt' else length) ** self.alpha


class Draws(NamedTuple):
    """What the tokens of texts are drawn from: a seed, and a number of each text, int32 [B]."""

    seed: Array | int
    number_B: Array | np.ndarray


class Limits(NamedTuple):
    """What differs between calls of one program: which ids may follow, bool [V], and the most tokens of each row.

    `most_B` is 0 to `Search.max_tokens`, int32. `draws` is needed where tokens are drawn.
    """

    may_follow_V: Array
    most_B: Array
    draws: Draws | None = None


def no_limits(vocab_size: int, rows: int, search: Search) -> Limits:
    """Limits that allow every id, and as many tokens as `search` allows."""
    return Limits(jnp.ones(vocab_size, bool), jnp.full(rows, search.max_tokens, jnp.int32))
