"""Tests scores by the length of the source: which group a pair belongs to, and the picture."""

import numpy as np
import pytest

from efficient_attention.data.pairs.pair_datasets import TextPair
from scripts import score_by_length
from scripts.score_by_length import group_pairs_by_length, group_score, plot_figure, word_accuracy

PAIRS = [
    TextPair('a', 'a', ''),
    TextPair('a b', 'b a', ''),
    TextPair('a b c', 'c b a', ''),
    TextPair('a b c d', 'd', ''),
]


def test_a_source_counts_for_the_first_edge_that_is_not_below_its_words():
    assert group_pairs_by_length(PAIRS, [2, 3]) == [[0, 1], [2]]  # the last source is longer than every edge
    assert group_pairs_by_length(PAIRS, [1, 4, 9]) == [[0], [1, 2, 3], []]


def test_each_group_is_scored_alone():
    made = ['a', 'b x', 'c b a', '']
    assert group_score(made, PAIRS, [0, 1], 'exact_match') == 0.5
    assert group_score(made, PAIRS, [1, 2], 'word_accuracy') == 4 / 5
    assert group_score(made, PAIRS, [], 'bleu') is None
    assert group_score(made, PAIRS, [2], 'chrf') == pytest.approx(100)


def test_a_word_too_many_or_too_few_is_wrong():
    assert word_accuracy(['a b', 'a'], ['a', 'a b']) == 2 / 4


def test_each_model_has_a_line_with_gaps_where_there_are_no_pairs():
    [axes] = plot_figure({'one': [0.5, None], 'two': [1.0, 0.0]}, [5, 10], 'exact_match').axes
    lines = {line.get_label(): np.asarray(line.get_ydata(), float) for line in axes.lines}
    np.testing.assert_array_equal(lines['one'], [0.5, np.nan])
    np.testing.assert_array_equal(lines['two'], [1.0, 0.0])
    assert set(score_by_length.METRICS) == set(score_by_length.WHOLE)
