"""Tests of generated labels: spaces do not count, and a text that is no label is wrong for every metric."""

import numpy as np

from efficient_attention.tasks.as_text.scored_text_dataset import parse_label_indices, remove_whitespace
from efficient_attention.tasks.metrics.glue import accuracy, f1_binary, matthews

WORDS = ('not_equivalent', 'equivalent')


def test_spaces_do_not_count():
    assert remove_whitespace(' not _ equi\tvalent\n') == 'not_equivalent'
    expected = np.array([0, 1, 0])
    found = parse_label_indices(['not _ equivalent', 'equivalent', 'equivalent '], WORDS, expected)
    assert found.tolist() == [0, 1, 1]


def test_no_metric_gains_by_a_text_that_is_no_label():
    """A text that is no label scores like the wrong one of two labels."""
    expected = np.array([0, 1, 1, 0, 1])
    texts = ['not_equivalent', 'equivalent', 'equivalent!', 'yes', '']
    found = parse_label_indices(texts, WORDS, expected)
    assert found.tolist() == [0, 1, 0, 1, 0]
    assert accuracy(expected, found) == 0.4 and f1_binary(expected, found) == 0.4 and matthews(expected, found) < 0


def test_of_three_labels_it_is_one_of_its_own():
    expected = np.array([0, 1, 2])
    assert parse_label_indices(['a', 'd', 'c'], ('a', 'b', 'c'), expected).tolist() == [0, -1, 2]
