import numpy as np
import pytest

from efficient_attention.tasks.problems.best_spans import best_spans, top_k_indices


def brute_force(logits, can_start, text, answer_length, count):
    """Returns all allowed spans, best first. At equal scores the leftmost start and then the shortest span wins."""
    spans = [
        (first, last, logits[first, 0] + logits[last, 1])
        for first in range(len(text))
        for last in range(first, min(first + answer_length, len(text)))
        if can_start[first] and text[first] >= 0 and text[first] == text[last]
    ]
    return sorted(spans, key=lambda span: -span[2])[:count]


@pytest.mark.parametrize('seed', range(8))
@pytest.mark.parametrize('answer_length, count', [(1, 3), (4, 20), (40, 5), (30, 1000)])
def test_equal_to_looking_at_every_span(seed, answer_length, count):
    rng = np.random.default_rng(seed)
    length = 25
    logits = rng.integers(-4, 5, size=(length, 2)).astype(np.float32)  # Small integers give many equal sums.
    text = np.sort(rng.integers(-1, 3, size=length))
    can_start = rng.random(length) < 0.7
    found = best_spans(logits, can_start, text, answer_length=answer_length, count=count)
    expected = brute_force(logits, can_start, text, answer_length, count)
    assert list(zip(*(column.tolist() for column in found), strict=True)) == expected


def test_no_span_at_all():
    logits = np.zeros((3, 2), np.float32)
    for can_start, text in (([False] * 3, [0, 0, 0]), ([True] * 3, [-1, -1, -1])):
        found = best_spans(logits, np.array(can_start), np.array(text), answer_length=2, count=4)
        assert [len(column) for column in found] == [0, 0, 0]


def test_largest_with_equal_ones():
    assert top_k_indices(np.array([1.0, 3.0, 2.0, 3.0, 2.0]), 3).tolist() == [1, 3, 2]
    assert top_k_indices(np.array([1.0, 3.0]), 5).tolist() == [1, 0]
