"""Tests of the n-gram baseline: it equals direct counts, sums to 1 in every context, and gains from more context."""

import math

import numpy as np
import pytest

from efficient_attention.inference.ngram_language_model import count_ngrams, token_bits

TRAIN = [0, 1, 2, 0, 1, 3, 0, 1, 2, 2, 1, 0, 3]
V = 5  # The id 4 never occurs.


def literal(history: list[int], token: int, order: int) -> float:
    """Returns a token's probability by the model's formula, with direct counts in the training list."""
    if order == 0:
        return 1 / V
    lower = literal(history[1:] if order > 1 else [], token, order - 1)
    if len(history) < order - 1:
        return lower
    follows = [TRAIN[i + order - 1] for i in range(len(TRAIN) - order + 1) if TRAIN[i : i + order - 1] == history]
    kinds = len(set(follows))
    return (follows.count(token) + kinds * lower) / (len(follows) + kinds) if follows else lower


@pytest.mark.parametrize('order', [1, 2, 3, 5])
def test_every_probability_is_the_literal_one_and_they_sum_to_one(order: int):
    orders = count_ngrams(np.array(TRAIN, np.uint8), V, order)
    for text in ([0, 1, 2, 0, 1], [3, 3, 4, 1, 0], [2, 1, 0, 3, 0]):
        total = 0.0
        for token in range(V):
            bits = token_bits(orders, np.array([*text, token], np.uint8), V)
            total += 2.0 ** -bits[-1]
            for place in range(1, len(text) + 1):
                whole = [*text, token]
                history = whole[max(0, place - order + 1) : place] if order > 1 else []
                expected = longest(history, whole[place], order)
                assert 2.0 ** -bits[place - 1] == pytest.approx(expected)
        assert total == pytest.approx(1.0)


def longest(history: list[int], token: int, order: int) -> float:
    """Returns the probability by the highest order that the history is long enough for."""
    return literal(history, token, min(order, len(history) + 1))


def test_chunks_do_not_matter():
    ids = np.random.default_rng(0).integers(0, 4, 50)
    orders = count_ngrams(ids[:30], V, 4)
    whole = token_bits(orders, ids, V)
    np.testing.assert_array_equal(token_bits(orders, ids, V, chunk=7), whole)
    assert len(whole) == 49 and len(token_bits(orders, ids[:1], V)) == 0


def test_a_text_that_repeats_itself_costs_little_with_context_and_its_entropy_without():
    ids = np.tile([0, 1, 2, 3], 500)
    costs = [token_bits(count_ngrams(ids, 4, order), ids, 4).mean() for order in (1, 2)]
    assert costs[0] == pytest.approx(math.log2(4), rel=1e-3)
    assert costs[1] < 0.02
