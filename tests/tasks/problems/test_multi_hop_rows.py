import numpy as np
import pytest

from efficient_attention.data.examples.hotpotqa import MultiHopQuestion, Paragraph
from efficient_attention.tasks.problems.multi_hop_rows import (
    MarkedText,
    answer_positions,
    answer_type,
    encoded_marked_texts,
    locate_answer,
    marked_texts,
    marker_ids,
    paragraph_arrays,
)
from tests.tasks.letters import SPECIAL, letters, spaced_letters

PARAGRAPHS = (
    Paragraph('hill', ('it is 12 high.', ' no one saw it.')),
    Paragraph('sea', ('12 saw it.', ' it has 2 sides, 12 in all.')),
)


def question(answer, facts=(), paragraphs=PARAGRAPHS):
    return MultiHopQuestion('q', 'who', paragraphs, (answer,), frozenset(facts))


def test_units_are_titles_and_their_sentences():
    assert marked_texts(question('x'))[:2] == [
        MarkedText('hill', 'hill'),
        MarkedText('it is 12 high.', 'hill', ('hill', 0)),
    ]
    assert [one.sentence for one in marked_texts(question('x'))[3:]] == [None, ('sea', 0), ('sea', 1)]


def test_markers():
    assert marker_ids(letters()) == (5, 6)
    assert marker_ids(letters(SPECIAL[:-2])) == (3, 3)
    assert marker_ids(spaced_letters()) == (2, 2)


def test_the_body_of_a_row():
    ((texts, encoded),) = encoded_marked_texts(letters(), [question('x')])
    body = paragraph_arrays(texts, encoded, (5, 6))
    assert (body['tokens'] == 5).sum() == 2 and (body['tokens'] == 6).sum() == 4
    assert all(array.dtype == np.int32 and array.shape == body['text'].shape for array in body.values())
    np.testing.assert_array_equal(body['is_marker'] == 1, np.isin(body['tokens'], (5, 6)))
    np.testing.assert_array_equal(body['text'] < 0, body['is_marker'] == 1)
    assert body['sentence'][body['tokens'] == 6].tolist() == [1, 2, 4, 5] and body['sentence'].max() == 5
    for number, marked in enumerate(texts):
        inside = body['text'] == number
        spans = zip(body['offset_start'][inside], body['offset_end'][inside], strict=True)
        assert ''.join(marked.text[start:stop] for start, stop in spans) == marked.text.replace(' ', '')
    assert not len(paragraph_arrays([], [], (5, 6))['tokens'])


@pytest.mark.parametrize(
    'answer, facts, text, start',
    [
        ('12', [], 1, 6),  # the first sentence with the answer
        ('12', [('sea', 1)], 5, 17),  # the supporting sentence
        ('2', [('hill', 0)], 5, 8),  # A whole word in another sentence is better than a part of '12'.
        ('12', [('sea', 7)], 4, 0),  # There is no sentence 7, so another one of the paragraph is used.
        ('sea', [], 3, 0),
        ('sa', [('sea', 0)], 4, 3),  # No text has 'sa' as a whole word.
    ],
)
def test_where_the_answer_stands(answer, facts, text, start):
    example = question(answer, facts)
    assert locate_answer(example, marked_texts(example)) == (text, start, start + len(answer))


def test_an_answer_that_stands_nowhere():
    ((texts, encoded),) = encoded_marked_texts(letters(), [question('owl')])
    assert locate_answer(question('owl'), texts) is None and answer_positions(question('owl'), texts, encoded) is None


def test_positions_of_the_answer():
    example = question('12', [('sea', 1)])
    ((texts, encoded),) = encoded_marked_texts(letters(), [example])
    first, last = answer_positions(example, texts, encoded)
    body = paragraph_arrays(texts, encoded, (5, 6))
    assert set(body['text'][first : last + 1]) == {5}
    assert (body['offset_start'][first], body['offset_end'][last]) == (17, 19)


def test_other_names_of_the_answer_are_looked_for():
    example = MultiHopQuestion('q', 'who', PARAGRAPHS, ('owl', 'sea'))
    assert locate_answer(example, marked_texts(example)) == (3, 0, 3)


def test_types():
    assert [answer_type(question(answer)) for answer in ('no', 'Yes ', 'no one')] == [2, 1, 0]
