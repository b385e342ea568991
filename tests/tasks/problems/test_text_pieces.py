import numpy as np
import pytest

from efficient_attention.data.examples.row_template import row_template
from efficient_attention.data.examples.text_encoder import arrays_of
from efficient_attention.tasks.problems.text_pieces import (
    characters_of,
    cut_notes,
    maximum_context,
    pieces_of,
    pieces_over,
    windows,
)
from tests.tasks.letters import letters, spaced_letters


@pytest.mark.parametrize('encoder', [letters(), spaced_letters()], ids=['bert', 'roberta'])
def test_rows_equal_the_tokenizer_s_own(encoder):
    template = row_template(encoder, is_pair=True)
    first, second = (pieces_of(encoder, [text])[0] for text in ('who is it', 'a cat'))
    row = template.row(first.ids, second.ids)
    expected = arrays_of(encoder.tokenizer.encode('who is it', 'a cat'))
    assert template.added == encoder.added(is_pair=True)
    for name, array in expected.items():
        np.testing.assert_array_equal(row[name], array)
        assert row[name].dtype == np.int32
    assert row['tokens'][template.second_start(len(first))] == second.ids[0]


def test_pieces_hold_no_spaces():
    encoder, text = spaced_letters(), 'ab  cd e'
    assert [5, 6] not in encoder.encode([text])[0].offsets  # the library's pieces do
    (pieces,) = pieces_of(encoder, [text])
    assert [text[start:stop] for start, stop in pieces.offsets if text[start:stop].strip()] == list('abcde')
    assert len(pieces) == len(pieces.ids) == len(pieces.offsets)


def test_many_texts_and_none():
    texts = ['ab'] * 1025 + ['c']
    assert [len(pieces) for pieces in pieces_of(letters(), texts)] == [2] * 1025 + [1]
    assert pieces_of(letters(), []) == []
    assert pieces_of(letters(), [''])[0].offsets.shape == (0, 2)


@pytest.mark.parametrize('count', [0, 1, 9, 10, 11, 25, 40])
@pytest.mark.parametrize('capacity, stride', [(10, 4), (10, 10), (10, 13), (1, 1), (10, 1)])
def test_windows_hold_every_piece_and_move_by_the_stride(count, capacity, stride):
    spans = windows(count, capacity, stride)
    assert {piece for start, stop in spans for piece in range(start, stop)} == set(range(count))
    assert all(stop - start == capacity for start, stop in spans[:-1]) and spans[-1][1] == count
    assert all(second[0] - first[0] == min(stride, capacity) for first, second in zip(spans, spans[1:], strict=False))
    assert all(stop < count for _, stop in spans[:-1])  # none after the one that ends with the pieces


def context_by_definition(spans, piece):
    """The first window with the largest minimum of left and right context plus a hundredth of its length."""
    best, best_score = -1, -1.0
    for number, (start, stop) in enumerate(spans):
        if start <= piece < stop:
            score = min(piece - start, stop - 1 - piece) + 0.01 * (stop - start)
            if score > best_score:
                best, best_score = number, score
    return best


@pytest.mark.parametrize('count, capacity, stride', [(8, 10, 3), (30, 10, 4), (31, 10, 7), (29, 10, 1), (40, 10, 10)])
def test_maximum_context(count, capacity, stride):
    spans = windows(count, capacity, stride)
    found = maximum_context(count, spans)
    assert found.shape == (len(spans), count) and (found.sum(axis=0) == 1).all()
    assert [context_by_definition(spans, piece) for piece in range(count)] == found.argmax(axis=0).tolist()


def test_maximum_context_in_the_example_of_bert_s_code():
    # 'the man went to the store and bought a gallon of milk' in windows of five words, three apart
    spans = [(0, 5), (3, 8), (6, 11)]
    assert maximum_context(11, spans)[:, 7].tolist() == [False, False, True]  # 'bought': 1 on the left, 3 on the right


def test_pieces_over_characters():
    offsets = np.array([[0, 3], [4, 4], [4, 6], [6, 9]], np.int32)
    assert pieces_over(offsets, 4, 6) == (2, 2)
    assert pieces_over(offsets, 5, 7) == (2, 3)
    assert pieces_over(offsets, 2, 9) == (0, 3)
    assert pieces_over(offsets, 3, 4) is None


@pytest.mark.parametrize(
    'text, span, expected',
    [
        ('one two', (0, 3), 'one'),
        ('one  two', (3, 8), 'two'),
        ('cafe\u0301 noir', (0, 4), 'cafe\u0301'),
        ('cafe\u0301', (0, 4), 'cafe\u0301'),
        ('a\u0301\u0308b', (0, 1), 'a\u0301\u0308'),
        ('x\u00a0y', (0, 2), 'x'),
    ],
)
def test_characters_as_a_reader_sees_them(text, span, expected):
    start, stop = characters_of(text, *span)
    assert text[start:stop] == expected


def test_cut_questions_are_counted():
    questions = pieces_of(letters(), ['ab', 'abcd', 'abc'])
    assert cut_notes(questions, ['1', '2', '3'], 4) == {}
    line = '2 of 3 questions have more than examples.question_length 2 tokens and were cut, the first: 2'
    assert cut_notes(questions, ['1', '2', '3'], 2) == {line: line}
