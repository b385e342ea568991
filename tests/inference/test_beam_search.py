"""Beam search: equals an exhaustive search, no result depends on neighbours or padding, and it stops when it may."""

import dataclasses
import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.attention.cache import rows_of
from efficient_attention.attention.weights import MASKED
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.inference.beam_search import (
    Hypotheses,
    Limits,
    Search,
    Start,
    beam_search,
    cached_for,
    find_best,
    greedy,
    highest,
    log_softmax,
    no_limits,
    start,
)
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.encoder_decoder import EncoderDecoder
from tests.models.drawn import drawn
from tests.tolerances import assert_close

END, WORDS = 1, (2, 3, 4, 5)
HASHES = 97  # a prime

Text = tuple[int, ...]


# ---- a decoder whose logits are random numbers for each text, so that a search can be followed in Python ----


class Walk(NamedTuple):
    """The row of the table that a text is in, and a number for all its tokens."""

    row_b: jax.Array
    hash_b: jax.Array

    def with_hypotheses(self, count: int) -> 'Walk':
        return Walk(jnp.repeat(self.row_b, count), jnp.repeat(self.hash_b, count))

    def go_on_from(self, parents_BK: jax.Array) -> 'Walk':
        rows_b = rows_of(parents_BK)
        return Walk(self.row_b[rows_b], self.hash_b[rows_b])


class TableDecoder(NamedTuple):
    """Stands for a `CachedDecoder`: the logits of what follows a text are those of its number, in the table's row."""

    table_BPV: jax.Array
    config: ModelConfig

    def __call__(self, state: Walk, tokens_b1: jax.Array) -> tuple[jax.Array, Walk]:
        state = Walk(state.row_b, (state.hash_b * 31 + tokens_b1[:, 0] + 1) % HASHES)
        return self.table_BPV[state.row_b, state.hash_b][:, None], state


def table(rows: int, size: int = 6, seed: int = 0, scale: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, scale, (rows, HASHES, size)).astype(np.float32)


@functools.partial(jax.jit, static_argnames=('search', 'find'))
def search_table(
    table_BPV: jax.Array, limits: Limits, search: Search, find: Any = find_best
) -> tuple[Hypotheses, jax.Array]:
    rows, _, size = table_BPV.shape
    decoder: Any = TableDecoder(table_BPV, ModelConfig(width=2, heads=1, vocab_size=size))
    begin: Any = Start(Walk(jnp.arange(rows), jnp.zeros(rows, jnp.int32)), jnp.zeros(rows, jnp.int32))  # type: ignore
    return find(decoder, begin, search, limits)


def found_in(table_BPV: np.ndarray, search: Search, limits: Limits | None = None, **options: Any) -> Any:
    """The texts and scores of each row, and the steps."""
    limits = limits or no_limits(table_BPV.shape[2], len(table_BPV), search)
    found, steps = search_table(jnp.asarray(table_BPV), limits, search, **options)
    return texts_of(found), int(steps)


def texts_of(found: Hypotheses) -> list[list[tuple[Text, float]]]:
    rows = []
    for tokens, lengths, scores in zip(found.tokens_BnT, found.lengths_Bn, found.scores_Bn, strict=True):
        for text, length in zip(np.asarray(tokens), np.asarray(lengths), strict=True):
            assert not text[length:].any()
        both = zip(np.asarray(tokens), np.asarray(lengths), np.asarray(scores), strict=True)
        rows.append([(tuple(map(int, text[:length])), float(score)) for text, length, score in both if length])
    return rows


def log_probs(table_PV: np.ndarray, text: Text) -> np.ndarray:
    """Of what follows a text, in float64."""
    number = 1
    for token in text:
        number = (number * 31 + token + 1) % HASHES
    logits = table_PV[number].astype(np.float64)
    return logits - np.log(np.exp(logits).sum())


def divided(total: float, length: int, search: Search) -> float:
    base = (5 + length) / 6 if search.penalty == 'gnmt' else length
    return total / base**search.alpha


def exhaustive(next_of: Any, search: Search) -> list[tuple[Text, float]]:
    """Every string of words up to the most tokens, the end symbol included, best first."""
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


def search_by_hand(table_PV: np.ndarray, search: Search) -> list[tuple[Text, float]]:
    """A beam search in Python that goes on to the most tokens, or stops by the rule of transformers."""
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


def words_alone(rows: int, most: int | list[int], size: int = 6) -> Limits:
    """The start symbol may not follow."""
    return Limits(jnp.arange(size) != 0, jnp.broadcast_to(jnp.asarray(most, jnp.int32), (rows,)))


def assert_same(found: list[tuple[Text, float]], expected: list[tuple[Text, float]]) -> None:
    assert [text for text, _ in found] == [text for text, _ in expected]
    assert_close([np.float32(score) for _, score in found], [np.float32(score) for _, score in expected])


PENALTIES = [('gnmt', 0.8), ('length', 0.8), ('gnmt', -0.8), ('length', -0.8), ('length', 0.0)]
ALL = 4**5 + 4**4  # texts of length 5, of words alone or with the end symbol behind four


@pytest.mark.parametrize('penalty, alpha', PENALTIES)
def test_a_beam_as_wide_as_all_prefixes_equals_the_search_of_every_string(penalty: str, alpha: float):
    search = Search(beams=ALL, best=8, penalty=penalty, alpha=alpha, max_tokens=5, end=END)
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
    """One in Python never stops before the most tokens, but for the early stop, which loses something by that."""
    search = Search(
        beams=3, best=best, penalty=penalty, alpha=alpha, max_tokens=9, min_tokens=min_tokens, end=END, stop=stop
    )  # fmt: skip
    tables = table(24, scale=3.0)
    tables[..., END] += np.linspace(0.0, 3.0, 24)[:, None]  # rows that end late, and rows that end soon
    for row in range(24):  # each by itself: the others would keep it going
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
    found, expected = jax.jit(highest, static_argnums=1)(sums_Bs, count), jax.lax.top_k(sums_Bs, count)
    jax.tree.map(np.testing.assert_array_equal, found, tuple(expected))


def test_it_stops_when_nothing_open_can_improve_and_a_row_that_is_done_never_changes():
    search = Search(beams=2, best=2, penalty='length', alpha=1.0, max_tokens=30, end=END)
    tables = table(2)
    tables[..., END] = 5.0
    tables[1, :, END] = -50.0  # goes on to the last step
    both, steps = found_in(tables, search, words_alone(2, 30))
    alone, steps_alone = found_in(tables[:1], search, words_alone(1, 30))
    assert alone[0] == both[0] and steps == 30 and steps_alone < 25
    assert_same(alone[0], search_by_hand(tables[0], search))
    _, soonest = found_in(tables[:1], dataclasses.replace(search, best=1, alpha=0.0), words_alone(1, 30))
    assert soonest <= 2  # without a penalty the most probable text that has ended cannot be beaten


def test_one_beam_is_greedy():
    search = Search(beams=1, penalty='length', alpha=0.0, max_tokens=8, end=END)
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
    """Their probabilities count as 1, as in transformers."""
    search = Search(beams=beams, best=beams, alpha=0.0, max_tokens=4, end=END, first=4, forces_end=True, min_tokens=1)
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
    search = Search(beams=4, best=4, max_tokens=1, end=END)
    limits = Limits(jnp.asarray([False, True, True, False, False, False]), jnp.asarray([1]))
    found, _ = search_table(jnp.asarray(table(1)), limits, search)
    np.testing.assert_array_equal(found.lengths_Bn, [[1, 1, 0, 0]])
    assert (np.asarray(found.scores_Bn[0, 2:]) == np.float32(MASKED)).all() and not found.tokens_BnT[0, 2:].any()


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'beams': 0}, 'beams is 0'),
        ({'best': 5}, 'best is 5; it must be 1 to 4, the beams'),
        ({'penalty': 'wu'}, "penalty is 'wu'; known: gnmt, length"),
        ({'alpha': math.nan}, 'alpha is nan'),
        ({'stop': 'soon'}, "stop is 'soon'; known: exact, early"),
        ({'max_tokens': 0}, 'max_tokens is 0'),
        ({'min_tokens': 128}, 'min_tokens is 128; it must be 0 or more and below max_tokens 128'),
        ({'end': -2}, 'end is -2'),
        ({'end': -1, 'forces_end': True}, 'forces_end is True; it must be False without an end symbol'),
    ],
)
def test_bad_options_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        Search(**fields)


def test_an_id_beyond_the_vocabulary_is_named():
    with pytest.raises(InputError, match='end is 6; the model has 6 ids'):
        found_in(table(1), Search(end=6))


# ---- real decoders ----

SIZES: dict[str, Any] = {
    'width': 8, 'heads': 2, 'vocab_size': 6, 'token_types': 0, 'max_length': 16, 'norm': 'pre', 'layers': 1,
    'attention_dropout_rate': 0.0, 'dropout_rate': 0.0, 'feed_forward_width': 16,
}  # fmt: skip
PAIR = ModelConfig(**SIZES, decoder_layers=2, decoder_attention='causal & window(3); causal', positions='learned')
RECURRENT = SIZES | {'heads': 1, 'decoder_layers': 1, 'feed_forward': False, 'positions': 'none', 'norm': 'none'}
RECURRENT |= {'residual': False, 'bidirectional': True, 'state_width': 8, 'feed_forward_width': 0}
BAHDANAU: dict[str, Any] = {'cell': 'gru', 'source_reading': 'before', 'initial_state': 'map_backward'}
BAHDANAU |= {'score': 'additive', 'readout': 'maxout'}
PAIRS = {
    'pair': PAIR,
    'bahdanau': ModelConfig(**RECURRENT | BAHDANAU),
    'luong': ModelConfig(**RECURRENT | {'cell': 'lstm', 'source_reading': 'after', 'input_feeding': True}),
}
GPT = ModelConfig(**SIZES | {'attention': 'favor(8, causal=True)', 'positions': 'sinusoidal'})
SOURCE = np.asarray([[2, 3, 4, 5, 1], [5, 3, 1, 0, 0]], np.int32)
PROMPT = np.asarray([[2, 3, 4], [5, 0, 0]], np.int32)


@functools.cache
def model_of(kind: str) -> tuple[nnx.GraphDef, dict]:
    if kind in PAIRS:
        std = 1.0 if kind == 'pair' else 0.6  # without norms larger numbers leave one text probable
        return drawn(lambda: EncoderDecoder(PAIRS[kind], rngs=nnx.Rngs(0)), std=std)
    return drawn(lambda: Decoder(GPT, rngs=nnx.Rngs(0)), std=1.0)


@functools.partial(jax.jit, static_argnames=('kind', 'search'))
def search_model(
    kind: str, params: dict, tokens: jax.Array, segments: jax.Array, search: Search
) -> tuple[Hypotheses, jax.Array]:
    """Continuations of these prompts, or targets of these sources."""
    model, rows = nnx.merge(model_of(kind)[0], params), len(tokens)
    if kind in PAIRS:
        other, prompt = model.encode(tokens, segments), jnp.zeros((rows, 1), jnp.int32)
        cached = cached_for(model.decoder, 1, search)
        begin = start(cached, prompt, jnp.ones_like(prompt), other)
    else:
        cached = cached_for(model, tokens.shape[1], search)
        begin = start(cached, tokens, segments)
    return find_best(cached, begin, search, words_alone(rows, search.max_tokens))


def found_by(kind: str, tokens: np.ndarray, lengths: list[int], search: Search) -> list[list[tuple[Text, float]]]:
    segments = (np.arange(tokens.shape[1])[None] < np.asarray(lengths)[:, None]).astype(np.int32)
    params = model_of(kind)[1]
    return texts_of(search_model(kind, params, jnp.asarray(tokens), jnp.asarray(segments), search)[0])


@functools.partial(jax.jit, static_argnames='kind')
def whole(kind: str, params: dict, source: jax.Array, tokens: jax.Array) -> jax.Array:
    """Log-probabilities of all rows of tokens in one call without caches; of a pair for one source."""
    model, ones = nnx.merge(model_of(kind)[0], params), jnp.ones_like(tokens)
    if kind in PAIRS:
        source = jnp.repeat(source, len(tokens), axis=0)
        return jax.nn.log_softmax(model(source, jnp.ones_like(source), tokens, ones))
    return jax.nn.log_softmax(model(tokens, ones))


def next_of_model(kind: str, row: np.ndarray, length: int) -> Any:
    """A function from a text to what follows it, by the model without caches."""
    strings = np.asarray(list(itertools.product(WORDS, repeat=length - 1)), np.int32)
    before = np.zeros((1, 1), np.int32) if kind in PAIRS else row[None]
    read = np.concatenate([before.repeat(len(strings), 0), strings], axis=1)
    source = jnp.asarray(row[None] if kind in PAIRS else before)
    after = np.asarray(whole(kind, model_of(kind)[1], source, jnp.asarray(read)), np.float64)
    number = {tuple(map(int, string)): index for index, string in enumerate(strings)}
    first = {text[:cut]: index for text, index in reversed(number.items()) for cut in range(length)}
    return lambda text: after[first[text], before.shape[1] - 1 + len(text)]


ROWS = dict.fromkeys(PAIRS, (SOURCE, [5, 3])) | {'gpt': (PROMPT, [3, 1])}


@pytest.mark.parametrize('kind', ROWS)
def test_a_decoder_s_caches_follow_its_hypotheses(kind: str):
    """A wide search of rows of unequal lengths equals that of every string, by logits without caches."""
    tokens, lengths = ROWS[kind]
    search = Search(beams=ALL, best=6, max_tokens=5, end=END)
    one = dataclasses.replace(search, beams=1, best=1)
    wide, narrow = found_by(kind, tokens, lengths, search), found_by(kind, tokens, lengths, one)
    for row, (found, length) in enumerate(zip(wide, lengths, strict=True)):
        next_of = next_of_model(kind, tokens[row, :length], 5)
        expected = exhaustive(next_of, search)
        assert [text for text, _ in found] == [text for text, _ in expected[:6]]
        scores = [[np.float32(score) for _, score in some] for some in (found, expected[:6])]
        assert_close(*scores, gradient=True)
        text: Text = ()
        while not text or (text[-1] != END and len(text) < 5):
            text = (*text, 1 + int(next_of(text)[1:].argmax()))
        assert narrow[row][0][0] == text


@pytest.mark.parametrize('kind', ['pair', 'bahdanau', 'gpt'])
def test_neighbours_and_what_stands_in_the_padding_change_nothing(kind: str):
    """Bit for bit in one program; a row by itself, without its padding, has the same texts."""
    tokens, lengths = ROWS[kind]
    search = Search(beams=3, best=3, max_tokens=6, end=END)
    found = found_by(kind, tokens, lengths, search)[1]
    others = tokens.copy()
    others[0], others[1, lengths[1] :] = 3, 4
    assert found_by(kind, others, [2, lengths[1]], search)[1] == found
    [alone] = found_by(kind, tokens[1:, : lengths[1]], lengths[1:], search)
    assert [text for text, _ in alone] == [text for text, _ in found]
    assert_close([np.float32(score) for _, score in alone], [np.float32(score) for _, score in found], gradient=True)


def test_too_few_positions_are_told_before_anything_runs():
    model = nnx.merge(*model_of('pair'))
    assert cached_for(model.decoder, 1, Search(max_tokens=16)).specs[0].max_length == 16
    with pytest.raises(InputError, match='2 tokens before and max_tokens 16 need 17 positions; the model has 16'):
        cached_for(model.decoder, 2, Search(max_tokens=16))


def test_log_probabilities_of_large_logits_are_as_exact_as_of_small_ones():
    logits_bV = jnp.asarray(np.random.default_rng(0).normal(size=(3, 50)) * 100 - 3000, jnp.float32)
    np.testing.assert_allclose(log_softmax(logits_bV), jax.nn.log_softmax(logits_bV), rtol=1e-6, atol=1e-6)
