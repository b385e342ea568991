import json
from pathlib import Path

import pytest

from efficient_attention.data.examples.hotpotqa import Paragraph, parse_paragraphs, read_hotpotqa
from efficient_attention.errors import InputError

DATA = Path(__file__).parents[3] / 'data' / 'multihop_qa'
ROW = {
    '_id': 'q1',
    'question': 'Who saw it?',
    'answer': 'Ada',
    'context': [['Sea', ['It is wet.', ' Ada saw it.']], ['Hill', ['It is high.']]],
    'supporting_facts': [['Sea', 1], ['Lake', 0]],
    'type': 'bridge',
}
MUSIQUE = {
    'id': 'm1',
    'question': 'Who saw it?',
    'answer': 'Ada',
    'answer_aliases': ['Ada L.'],
    'answerable': True,
    'paragraphs': [
        {'idx': 0, 'title': 'Sea', 'paragraph_text': 'Ada saw it.', 'is_supporting': True},
        {'idx': 1, 'title': 'Hill', 'paragraph_text': 'It is high.', 'is_supporting': False},
    ],
}


def read(tmp_path, *rows, is_labelled=True):
    path = tmp_path / 'a.json'
    path.write_text(json.dumps(rows))
    return read_hotpotqa(str(path), is_labelled=is_labelled)


def test_a_list_and_lines_give_the_same(tmp_path):
    lines = tmp_path / 'a.jsonl'
    lines.write_text('\n'.join(json.dumps(ROW | {'_id': id}) for id in 'ab'))
    first = read(tmp_path, *(ROW | {'_id': id} for id in 'ab'))
    second = read_hotpotqa(str(lines), is_labelled=True)
    assert [(q.id, q.paragraphs, q.answers, q.supporting) for q in first] == [
        (q.id, q.paragraphs, q.answers, q.supporting) for q in second
    ]
    assert first[0].paragraphs[0] == Paragraph('Sea', ('It is wet.', ' Ada saw it.'))
    assert first[0].supporting == {('Sea', 1), ('Lake', 0)} and first[0].answers == ('Ada',)
    assert first[1].place.endswith("a.json: row 1: question 'b'")


def test_numbers_of_sentences_in_lists(tmp_path):
    (question,) = read(tmp_path, ROW | {'supporting_facts': [['Sea', [0, 1], ['It is wet.'], None]]})
    assert question.supporting == {('Sea', 0), ('Sea', 1)}


def test_musique(tmp_path):
    (question,) = read(tmp_path, MUSIQUE)
    assert question.answers == ('Ada', 'Ada L.') and question.supporting == {('Sea', 0)}
    assert question.paragraphs[1] == Paragraph('Hill', ('It is high.',))


def test_a_test_set_needs_no_answers(tmp_path):
    row = {name: ROW[name] for name in ('_id', 'question', 'context')}
    (question,) = read(tmp_path, row, is_labelled=False)
    assert question.answers is None and not question.supporting


@pytest.mark.parametrize('row', [ROW, MUSIQUE])
def test_labels_of_a_test_set_are_read(tmp_path, row):
    (question,) = read(tmp_path, row, is_labelled=False)
    (expected,) = read(tmp_path, row)
    assert question.answers == expected.answers and question.supporting == expected.supporting != frozenset()


@pytest.mark.parametrize(
    'row',
    [
        {name: value for name, value in ROW.items() if name != 'supporting_facts'},
        ROW | {'answer': ''},
        MUSIQUE | {'answerable': False},
        MUSIQUE | {'paragraphs': [{'title': 'Sea', 'paragraph_text': 'It is wet.'}]},
    ],
)
def test_a_part_of_a_label_is_none(tmp_path, row):
    (question,) = read(tmp_path, row, is_labelled=False)
    assert question.answers is None and not question.supporting


@pytest.mark.parametrize(
    'change, message',
    [
        ({'question': ''}, "question 'q1': field 'question' is empty"),
        ({'answer': ' '}, "question 'q1': field 'answer' is empty"),
        ({'context': [['Sea']]}, "field 'context', paragraph 0: not [title, [sentence, ...]]"),
        ({'context': [['Sea', ['x', 3]]]}, 'paragraph 0: a sentence is a whole number, not a text'),
        ({'supporting_facts': ['Sea']}, "field 'supporting_facts': not [title, number of the sentence]"),
        ({'supporting_facts': [['Sea', 'one']]}, 'the number of a sentence is a text, not a whole number'),
        ({'_id': None}, "row 0: field '_id' is null, not a text"),
    ],
)
def test_bad_fields_are_named(tmp_path, change, message):
    with pytest.raises(InputError) as error:
        read(tmp_path, ROW | change)
    assert message in str(error.value)


def test_missing_fields_are_named(tmp_path):
    with pytest.raises(InputError, match="no field 'context'; known: question, answer, type, _id"):
        read(tmp_path, {name: ROW[name] for name in ('question', 'answer', 'type', '_id')})
    with pytest.raises(InputError, match='no questions'):
        read(tmp_path)
    with pytest.raises(InputError, match="'answerable' is False"):
        read(tmp_path, MUSIQUE | {'answerable': False})


def test_paragraphs_of_plain_python():
    assert parse_paragraphs([['Sea', ['wet']]], 'here') == (Paragraph('Sea', ('wet',)),)
    with pytest.raises(InputError, match='here is a text, not a list'):
        parse_paragraphs('Sea', 'here')


@pytest.mark.real
@pytest.mark.parametrize(
    'name, count',
    [
        ('hotpotqa_amor_500.jsonl', 500),
        ('hotpotqa_amor_100.jsonl', 100),
        ('hotpotqa_train_100.json', 100),
        ('musique_train_100.json', 100),
    ],
)
def test_real_files(name, count):
    if not DATA.exists():
        pytest.skip('needs data/multihop_qa')
    questions = read_hotpotqa(str(DATA / name), is_labelled=True)
    assert len(questions) == count and all(question.supporting for question in questions)
