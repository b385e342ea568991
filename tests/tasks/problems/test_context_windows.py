"""Tests that windows cover all tokens, and that each token is read in the window with the most context around it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficient_attention.tasks.problems.token_windows import max_context_mask, window_spans, window_starts


@given(st.integers(1, 100), st.integers(1, 30), st.integers(1, 40))
def test_windows_cover_all(length, room, stride):
    starts = window_starts(length, room, stride)
    assert {place for start in starts for place in range(start, min(start + room, length))} == set(range(length))
    assert starts == sorted(set(starts)) and (len(starts) == 1 or starts[-2] + room < length)  # none in vain
    assert {later - start for start, later in zip(starts, starts[1:], strict=False)} <= {min(stride, room)}


@pytest.mark.parametrize('count', [0, 1, 9, 10, 11, 25, 40])
@pytest.mark.parametrize('capacity, stride', [(10, 4), (10, 10), (10, 13), (1, 1), (10, 1)])
def test_windows_hold_every_piece_and_move_by_the_stride(count, capacity, stride):
    spans = window_spans(count, capacity, stride)
    assert {piece for start, stop in spans for piece in range(start, stop)} == set(range(count))
    assert all(stop - start == capacity for start, stop in spans[:-1]) and spans[-1][1] == count
    assert all(second[0] - first[0] == min(stride, capacity) for first, second in zip(spans, spans[1:], strict=False))
    assert all(stop < count for _, stop in spans[:-1])  # Only the last window ends with the text.


def context_by_definition(spans, piece):
    """Returns the first window with the largest minimum of left and right context plus a hundredth of its length."""
    best, best_score = -1, -1.0
    for number, (start, stop) in enumerate(spans):
        if start <= piece < stop:
            score = min(piece - start, stop - 1 - piece) + 0.01 * (stop - start)
            if score > best_score:
                best, best_score = number, score
    return best


@pytest.mark.parametrize('count, capacity, stride', [(8, 10, 3), (30, 10, 4), (31, 10, 7), (29, 10, 1), (40, 10, 10)])
def test_maximum_context(count, capacity, stride):
    spans = window_spans(count, capacity, stride)
    found = max_context_mask(count, spans)
    assert found.shape == (len(spans), count) and (found.sum(axis=0) == 1).all()
    assert [context_by_definition(spans, piece) for piece in range(count)] == found.argmax(axis=0).tolist()


def test_maximum_context_in_the_example_of_bert_s_code():
    # The text is 'the man went to the store and bought a gallon of milk', in windows of five words every three words.
    spans = [(0, 5), (3, 8), (6, 11)]
    # 'bought' has 1 word on the left, 3 on the right.
    assert max_context_mask(11, spans)[:, 7].tolist() == [False, False, True]
