"""Tests that beam search equals an exhaustive search, ignores other rows and padding, and stops as soon as it may."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.cache import beam_row_indices
from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.inference.beam_search import (
    Hypotheses,
    PromptState,
    beam_search,
    blockwise_top_k,
    find_best_texts,
    greedy,
)
from efficient_attention.inference.search_settings import SearchSettings, TokenLimits, no_limits
from tests.tolerances import assert_close

END, WORDS = 1, (2, 3, 4, 5)
HASHES = 97  # a prime

Text = tuple[int, ...]


# ---- A decoder with a table of random logits for each prefix, so that Python can repeat the search ----


class Walk(NamedTuple):
    """The state of `TableDecoder`: for each hypothesis its table row, and a hash of all its tokens."""

    row_b: jax.Array
    hash_b: jax.Array

    def expand_to_beams(self, count: int) -> 'Walk':
        return Walk(jnp.repeat(self.row_b, count), jnp.repeat(self.hash_b, count))

    def reorder_beams(self, parents_BK: jax.Array) -> 'Walk':
        rows_b = beam_row_indices(parents_BK)
        return Walk(self.row_b[rows_b], self.hash_b[rows_b])


class TableDecoder(NamedTuple):
    """A stand-in for `CachedDecoder`: looks up the next logits in a table, by the row and the hash of the tokens."""

    table_BPV: jax.Array
    config: ModelConfig

    def __call__(self, state: Walk, tokens_b1: jax.Array) -> tuple[jax.Array, Walk]:
        state = Walk(state.row_b, (state.hash_b * 31 + tokens_b1[:, 0] + 1) % HASHES)
        return self.table_BPV[state.row_b, state.hash_b][:, None], state


def table(rows: int, size: int = 6, seed: int = 0, scale: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, scale, (rows, HASHES, size)).astype(np.float32)


@functools.partial(jax.jit, static_argnames=('search', 'find'))
def search_table(
    table_BPV: jax.Array, limits: TokenLimits, search: SearchSettings, find: Any = find_best_texts
) -> tuple[Hypotheses, jax.Array]:
    rows, _, size = table_BPV.shape
    decoder: Any = TableDecoder(table_BPV, ModelConfig(width=2, heads=1, vocab_size=size))
    begin: Any = PromptState(Walk(jnp.arange(rows), jnp.zeros(rows, jnp.int32)), jnp.zeros(rows, jnp.int32))  # type: ignore
    return find(decoder, begin, search, limits)


def found_in(table_BPV: np.ndarray, search: SearchSettings, limits: TokenLimits | None = None, **options: Any) -> Any:
    """Returns the texts with scores of each row, and the number of steps of the search."""
    limits = limits or no_limits(table_BPV.shape[2], len(table_BPV), search)
    found, steps = search_table(jnp.asarray(table_BPV), limits, search, **options)
    return texts_of(found), int(steps)


def texts_of(found: Hypotheses) -> list[list[tuple[Text, float]]]:
    rows = []
    found = jax.device_get(found)
    for tokens, lengths, scores in zip(found.tokens_BnT, found.lengths_Bn, found.scores_Bn, strict=True):
        for text, length in zip(tokens, lengths, strict=True):
            assert not text[length:].any()
        both = zip(tokens, lengths, scores, strict=True)
        rows.append([(tuple(map(int, text[:length])), float(score)) for text, length, score in both if length])
    return rows


def log_probs(table_PV: np.ndarray, text: Text) -> np.ndarray:
    """Returns the log-probabilities of the tokens that may follow `text`, in float64."""
    number = 1
    for token in text:
        number = (number * 31 + token + 1) % HASHES
    logits = table_PV[number].astype(np.float64)
    return logits - np.log(np.exp(logits).sum())


def divided(total: float, length: int, search: SearchSettings) -> float:
    base = (5 + length) / 6 if search.penalty == 'gnmt' else length
    return total / base**search.alpha


def exhaustive(next_of: Any, search: SearchSettings) -> list[tuple[Text, float]]:
    """Returns every string of words up to `max_tokens`, end symbol included, with its score, best first."""
    found, open_texts = [], {(): 0.0}
    for length in range(1, search.max_tokens + 1):
        longer = {}
        for text, total in open_texts.items():
            following = next_of(text)
            if length > search.min_tokens:
                found.append(((*text, END), divided(total + following[END], length, search)))
            longer |= {(*text, word): total + following[word] for word in WORDS}
        open_texts = longer
    found += [(text, divided(total, search.max_tokens, search)) for text, total in open_texts.items()]
    return sorted(found, key=lambda pair: -pair[1])


def search_by_hand(table_PV: np.ndarray, search: SearchSettings) -> list[tuple[Text, float]]:
    """Returns the result of a beam search in Python, which ends at `max_tokens` or by transformers' 'early' rule."""
    found: list[tuple[Text, float]] = []
    beams: list[tuple[Text, float]] = [((), 0.0)]
    for length in range(1, search.max_tokens + 1):
        longer = [
            ((*text, word), total + log_probs(table_PV, text)[word])
            for text, total in beams
            for word in ((*WORDS, END) if length > search.min_tokens else WORDS)
        ]
        longer.sort(key=lambda pair: -pair[1])
        is_last = length == search.max_tokens
        ended = [(text, total) for text, total in longer[: search.beams] if is_last or text[-1] == END]
        found += [(text, divided(total, length, search)) for text, total in ended]
        beams = [(text, total) for text, total in longer if text[-1] != END][: search.beams]
        kept = sorted((score for _, score in found), reverse=True)[: search.beams]
        reach = max(divided(total, length, search) for _, total in beams)
        if search.stop == 'early' and len(kept) == search.beams and reach <= kept[-1]:
            break
    return sorted(found, key=lambda pair: -pair[1])[: search.best]


def words_alone(rows: int, most: int | list[int], size: int = 6) -> TokenLimits:
    """Returns limits that forbid only the start symbol."""
    return TokenLimits(np.arange(size) != 0, np.broadcast_to(np.asarray(most, np.int32), (rows,)))


def assert_same(found: list[tuple[Text, float]], expected: list[tuple[Text, float]]) -> None:
    assert [text for text, _ in found] == [text for text, _ in expected]
    assert_close([np.float32(score) for _, score in found], [np.float32(score) for _, score in expected])


PENALTIES = [('gnmt', 0.8), ('length', 0.8), ('gnmt', -0.8), ('length', -0.8), ('length', 0.0)]
ALL = 4**5 + 4**4  # all texts of length 5: five words, or four words and the end symbol


@pytest.mark.parametrize('penalty, alpha', PENALTIES)
def test_a_beam_as_wide_as_all_prefixes_equals_the_search_of_every_string(penalty: str, alpha: float):
    search = SearchSettings(beams=ALL, best=8, penalty=penalty, alpha=alpha, max_tokens=5, end=END)
    tables = table(3)
    rows, _ = found_in(tables, search, words_alone(3, 5))
    for row, found in enumerate(rows):
        expected = exhaustive(functools.partial(log_probs, tables[row]), search)
        assert_same(found, expected[:8])
        assert len({text for text, _ in found}) == 8 and sorted(found, key=lambda pair: -pair[1]) == found


@pytest.mark.parametrize(
    'penalty, alpha, best, min_tokens, stop',
    [
        ('gnmt', 1.5, 1, 0, 'exact'),
        ('length', 0.9, 1, 2, 'exact'),
        ('gnmt', -0.5, 1, 0, 'exact'),
        ('length', -0.3, 1, 0, 'exact'),
        ('length', 0.0, 3, 2, 'exact'),
        ('length', 1.0, 1, 0, 'early'),
    ],
)
def test_a_narrow_beam_equals_one_in_python(penalty: str, alpha: float, best: int, min_tokens: int, stop: str):
    """A narrow beam equals a Python search that never stops early, except with `stop='early'`, which may lose texts."""
    search = SearchSettings(
        beams=3, best=best, penalty=penalty, alpha=alpha, max_tokens=9, min_tokens=min_tokens, end=END, stop=stop
    )  # fmt: skip
    tables = table(24, scale=3.0)
    tables[..., END] += np.linspace(0.0, 3.0, 24)[:, None]  # Rows end at different times.
    for row in range(24):  # Other rows would keep the search running.
        [found], _ = found_in(tables[row : row + 1], search, words_alone(1, 9))
        assert_same(found, search_by_hand(tables[row], search))
        assert all(len(text) > min_tokens for text, _ in found)
    by_hand = [search_by_hand(one, dataclasses.replace(search, stop='exact')) for one in tables]
    assert (stop == 'early') == any(
        search_by_hand(one, search) != full for one, full in zip(tables, by_hand, strict=True)
    )


@pytest.mark.parametrize('size, count', [(1024, 4), (672, 5), (331, 6)])
def test_the_highest_sums_are_those_of_top_k_ties_too(size: int, count: int):
    sums_Bs = jnp.asarray(np.random.default_rng(0).integers(0, 40, (3, size)), jnp.float32)
    both = jax.jit(lambda sums_Bs: (blockwise_top_k(sums_Bs, count), tuple(jax.lax.top_k(sums_Bs, count))))
    jax.tree.map(np.testing.assert_array_equal, *both(sums_Bs))


def test_it_stops_when_nothing_open_can_improve_and_a_row_that_is_done_never_changes():
    search = SearchSettings(beams=2, best=2, penalty='length', alpha=1.0, max_tokens=30, end=END)
    tables = table(2)
    tables[..., END] = 5.0
    tables[1, :, END] = -50.0  # This row runs to the last step.
    both, steps = found_in(tables, search, words_alone(2, 30))
    alone, steps_alone = found_in(tables[:1], search, words_alone(1, 30))
    assert alone[0] == both[0] and steps == 30 and steps_alone < 25
    assert_same(alone[0], search_by_hand(tables[0], search))
    _, soonest = found_in(tables[:1], dataclasses.replace(search, best=1, alpha=0.0), words_alone(1, 30))
    assert soonest <= 2  # Without a length penalty, longer texts can only score lower.


def test_one_beam_is_greedy():
    search = SearchSettings(beams=1, penalty='length', alpha=0.0, max_tokens=8, end=END)
    tables = table(16)
    limits = words_alone(16, [8] * 14 + [3, 0])
    assert found_in(tables, search, limits)[0] == found_in(tables, search, limits, find=greedy)[0]
    found, beams = (found_in(tables, search, limits, find=find)[0] for find in (greedy, beam_search))
    assert found[15] == beams[15] == [] and len(found[14][0][0]) <= 3
    for row in range(15):
        assert_same(found[row], beams[row])
        text: Text = ()
        while not text or (text[-1] != END and len(text) < int(limits.most_B[row])):
            text = (*text, 1 + int(log_probs(tables[row], text)[1:].argmax()))
        assert found[row][0][0] == text


@pytest.mark.parametrize('beams', [1, 3])
def test_the_first_token_and_the_last_may_be_given(beams: int):
    """A forced first or last token counts with the probability 1, as in transformers."""
    search = SearchSettings(
        beams=beams, best=beams, alpha=0.0, max_tokens=4, end=END, first=4, forces_end=True, min_tokens=1
    )
    tables = table(4)
    tables[..., END] = -9.0
    rows, _ = found_in(tables, search, words_alone(4, [4, 4, 3, 2]))
    for row, found in enumerate(rows):
        assert len(found) >= 1
        for text, score in found:
            assert text[0] == 4 and text[-1] == END and len(text) == int(words_alone(4, [4, 4, 3, 2]).most_B[row])
            total = sum(log_probs(tables[row], text[:place])[text[place]] for place in range(1, len(text) - 1))
            assert math.isclose(score, total, rel_tol=1e-4, abs_tol=1e-5)


def test_fewer_texts_than_asked_for_are_told_by_their_length():
    search = SearchSettings(beams=4, best=4, max_tokens=1, end=END)
    limits = TokenLimits(np.array([False, True, True, False, False, False]), np.array([1], np.int32))
    found, _ = search_table(jnp.asarray(table(1)), limits, search)
    np.testing.assert_array_equal(found.lengths_Bn, [[1, 1, 0, 0]])
    assert (np.asarray(found.scores_Bn[0, 2:]) == np.float32(MASKED)).all() and not found.tokens_BnT[0, 2:].any()


def test_an_id_beyond_the_vocabulary_is_named():
    with pytest.raises(InputError, match='end is 6; the model has 6 ids'):
        found_in(table(1), SearchSettings(end=6))
