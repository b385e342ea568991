"""Tests that the rules for next tokens equal a definition in Python, in single calls, searches and sampling."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.inference.next_token_scores import TokenHistory, apply_token_rules, log_softmax, token_history
from efficient_attention.inference.sampling import Sampling
from efficient_attention.inference.search_settings import SamplingSeeds, SearchSettings, TokenRules
from tests.inference.test_beam_search import END, Text, assert_same, divided, found_in, log_probs, table, words_alone

SIZE = 6


def by_definition(scores: np.ndarray, text: Text, search: SearchSettings, made: int, most: int) -> np.ndarray:
    """Returns the next token's scores after all rules, in transformers' order; `text` includes the start symbol."""
    rules, scores = search.rules, scores.astype(np.float64).copy()
    for token in set(text):
        scores[token] *= rules.repetition_penalty if scores[token] < 0 else 1 / rules.repetition_penalty
    for token in range(len(scores)):
        longer = (*text, token)
        size = rules.no_repeat_ngram_size
        earlier = {text[place : place + size] for place in range(len(text) - size + 1)} if size else set()
        words = [word for word in rules.bad_words_ids if len(word) > 1 or word[0] not in search.end_token_ids]
        is_bad = any(longer[-len(word) :] == word for word in words)
        is_early_end = token in search.end_token_ids and made < search.min_tokens
        if token == 0 or longer[-size:] in earlier or is_bad or is_early_end:
            scores[token] = -math.inf
    for must, forced in (
        (made == 0 and search.first >= 0, search.first),
        (search.forces_end and made + 1 >= most, END),
    ):
        if must:
            scores[:] = -math.inf
            scores[forced] = 0.0
    scores[list(rules.suppress_tokens)] = -math.inf
    if made == (search.first >= 0):
        scores[list(rules.begin_suppress_tokens)] = -math.inf
    return scores


RULES = [
    {'repetition_penalty': 1.7},
    {'repetition_penalty': 0.6},
    {'no_repeat_ngram_size': 1},
    {'no_repeat_ngram_size': 2},
    {'no_repeat_ngram_size': 3},
    {'bad_words_ids': ((2,), (END,), (3, 4), (5, 3), (4, 4, 2))},
    {'suppress_tokens': (3,)},
    {'begin_suppress_tokens': (2, 4)},
    {'repetition_penalty': 1.3, 'no_repeat_ngram_size': 2, 'bad_words_ids': ((4, 3),), 'suppress_tokens': (5,)},
]


@pytest.mark.parametrize('fields', RULES, ids=lambda fields: ' '.join(fields))
def test_scores_by_rules_are_those_of_a_definition(fields: dict):
    """Checks texts of 0 to 7 tokens after two prompt tokens; with few different words, sequences repeat often."""
    search = SearchSettings(end=END, rules=TokenRules(**fields), max_tokens=8, min_tokens=2)
    draw = np.random.default_rng(0)
    before, made = draw.integers(0, SIZE, (32, 2)), draw.integers(2, SIZE, (32, 8))
    scores = draw.normal(0.0, 2.0, (32, SIZE)).astype(np.float32)

    @jax.jit
    def of_so_many(count: jax.Array) -> jax.Array:
        read = token_history(jnp.asarray(before, jnp.int32), jnp.asarray(made, jnp.int32), count)
        return apply_token_rules(jnp.asarray(scores), read, search, words_alone(32, 8))

    for count in range(8):
        found = np.asarray(of_so_many(jnp.int32(count)))
        for row in range(32):
            text = (*map(int, before[row]), *map(int, made[row, :count]))
            expected = by_definition(scores[row], text, search, count, 8)
            assert ((found[row] == np.float32(MASKED)) == np.isinf(expected)).all(), (text, count)
            is_in = ~np.isinf(expected)
            np.testing.assert_allclose(found[row][is_in], expected[is_in], rtol=1e-6)


def test_places_before_a_short_prompt_hold_no_token():
    """Padding (-1) before a short prompt matches no rule. A forbidden sequence longer than the text does nothing."""
    rules = TokenRules(
        repetition_penalty=2.0, no_repeat_ngram_size=2, bad_words_ids=((3, 4, 2), (2, 2, 2, 2, 3, 4, 3, 5))
    )
    search = SearchSettings(end=END, rules=rules)
    read = TokenHistory(jnp.asarray([[-1, -1, 3, 4, 3], [-1, 3, 4, 3, 0]], jnp.int32), jnp.int32(5), jnp.int32(2))
    found = np.asarray(
        jax.jit(lambda: apply_token_rules(jnp.ones((2, SIZE), jnp.float32), read, search, words_alone(2, 8)))()
    )
    expected = by_definition(np.ones(SIZE), (3, 4, 3), search, 2, 8)
    np.testing.assert_allclose(found[0], np.where(np.isinf(expected), np.float32(MASKED), expected), rtol=1e-6)


def search_in_python(table_PV: np.ndarray, search: SearchSettings) -> list[tuple[Text, float]]:
    """Returns the result of a beam search in Python, or of greedy search if `beams` is 1."""
    found: list[tuple[Text, float]] = []
    beams: list[tuple[Text, float]] = [((), 0.0)]
    for length in range(1, search.max_tokens + 1):
        longer = []
        for text, total in beams:
            own = log_probs(table_PV, text)
            scores = by_definition(own, text, search, length - 1, search.max_tokens)
            longer += [((*text, word), total + scores[word]) for word in range(SIZE) if not np.isinf(scores[word])]
        longer.sort(key=lambda pair: -pair[1])
        is_last = length == search.max_tokens
        ended = [one for one in longer[: search.beams] if is_last or one[0][-1] in search.end_token_ids]
        found += [(text, divided(total, length, search)) for text, total in ended]
        beams = [one for one in longer if one[0][-1] not in search.end_token_ids][: search.beams]
        if search.stop == 'first' and len(found) >= search.beams:
            break
    return sorted(found, key=lambda pair: -pair[1])[: search.best]


COMBINED = TokenRules(repetition_penalty=1.4, no_repeat_ngram_size=3, bad_words_ids=((2, 3), (4,)))


@pytest.mark.parametrize('fields', [{}, {'stop': 'first'}], ids=['exact', 'first'])
def test_a_search_with_rules_and_two_ends_equals_one_in_python(fields: dict):
    """With two end symbols a hypothesis may end in two ways, so the search needs one more candidate a beam."""
    search = SearchSettings(
        beams=3, best=2, penalty='length', alpha=1.0, max_tokens=9, end=END, more_ends=(5,), rules=COMBINED, **fields
    )
    tables = table(16, scale=3.0)
    tables[..., [END, 5]] += np.linspace(-2.0, 3.0, 16)[:, None, None]
    rows, _ = found_in(tables, search, words_alone(len(tables), search.max_tokens))
    for row, found in enumerate(rows):
        assert_same(found, search_in_python(tables[row], search))
    if fields:
        exact = dataclasses.replace(search, stop='exact')
        assert any(search_in_python(one, search) != search_in_python(one, exact) for one in tables)
    without = dataclasses.replace(search, rules=TokenRules())
    assert any(search_in_python(one, search) != search_in_python(one, without) for one in tables)


def test_greedy_text_is_chosen_by_penalised_logits_and_scored_by_the_model():
    """As in transformers, greedy search penalises logits, while beam search penalises log-probabilities."""
    rules = TokenRules(repetition_penalty=2.0, bad_words_ids=((2, 3),))
    search = SearchSettings(beams=1, penalty='length', alpha=0.0, max_tokens=8, end=END, more_ends=(5,), rules=rules)
    tables = table(16, scale=1.5) - 4.0
    rows, _ = found_in(tables, search, words_alone(len(tables), search.max_tokens))
    differs = False
    for row, [(found, score)] in enumerate(rows):
        text: Text = ()
        total = 0.0
        while len(text) < 8 and not (text and text[-1] in search.end_token_ids):
            number = 1
            for token in text:
                number = (number * 31 + token + 1) % len(tables[row])
            by_logit = by_definition(tables[row][number], text, search, len(text), 8)
            by_log_prob = by_definition(log_probs(tables[row], text), text, search, len(text), 8)
            differs |= bool(by_logit.argmax() != by_log_prob.argmax())
            total += log_probs(tables[row], text)[by_logit.argmax()]
            text = (*text, int(by_logit.argmax()))
        assert found == text and math.isclose(score, total, rel_tol=1e-5)
    assert differs


def test_draws_follow_the_probabilities_of_what_may_follow():
    """In 4,000 draws each token's share is within 5 standard deviations, and forbidden tokens never occur."""
    sampling, count = Sampling(temperature=0.8, top_k=4, top_p=0.95), 4000
    rules = TokenRules(repetition_penalty=1.5, begin_suppress_tokens=(3,))
    search = SearchSettings(beams=1, alpha=0.0, max_tokens=1, end=END, rules=rules, sampling=sampling)
    one = table(1, scale=1.0)
    tables = np.repeat(one, count, axis=0)
    limits = words_alone(count, 1)

    def drawn(seed: int) -> list[Text]:
        rows, _ = found_in(tables, search, limits._replace(draws=SamplingSeeds(seed, np.arange(count, dtype=np.int32))))
        return [text for [(text, _)] in rows]

    first = drawn(3)
    assert first == drawn(3) and first != drawn(4)
    scores = by_definition(one[0, 1], (), search, 0, 9) / 0.8
    order = np.argsort(-scores)[:4]
    probabilities = np.exp(scores[order] - scores[order].max())
    probabilities /= probabilities.sum()
    kept = int((np.cumsum(probabilities) - probabilities < 0.95).sum())
    expected = np.zeros(SIZE)
    expected[order[:kept]] = probabilities[:kept] / probabilities[:kept].sum()
    shares = np.bincount([text[0] for text in first], minlength=SIZE) / count
    assert (abs(shares - expected) <= 5 * np.sqrt(expected * (1 - expected) / count) + 1e-9).all()


def test_log_probabilities_of_large_logits_are_as_exact_as_of_small_ones():
    logits_bV = jnp.asarray(np.random.default_rng(0).normal(size=(3, 50)) * 100 - 3000, jnp.float32)
    found, expected = jax.jit(lambda logits_bV: (log_softmax(logits_bV), jax.nn.log_softmax(logits_bV)))(logits_bV)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
