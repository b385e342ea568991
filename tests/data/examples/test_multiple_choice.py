"""Tests of the readers of multiple-choice questions in each file format, and of row counts of real files."""

import json
from pathlib import Path

import pytest

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.multiple_choice import ChoiceQuestion, answer_index, read_choices
from efficient_attention.errors import InputError

SWAG = (
    ',video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n'
    '0,v,1,A b. C,A b.,C,gold,"d, e",f,g,h,2\n'
)
ARTICLE = {
    'article': 'Long text.',
    'questions': ['Who ___ here?', 'Why?'],
    'options': [['a', 'b', 'c', 'd'], ['e', 'f', 'g', 'h']],
    'answers': ['B', 'D'],
    'id': 'high1.txt',
}


def read(path, content, format, split='train', **options):
    path.write_text(content)
    config = ExamplesConfig(problem='multiple_choice', **{'format': format, split: str(path), **options})
    return list(read_choices(config, split))


def test_swag_columns(tmp_path):
    [question] = read(tmp_path / 'a.csv', SWAG, 'swag')
    assert (question.context, question.question, question.answer) == ('A b.', 'C', 2)
    assert question.endings == ('C d, e', 'C f', 'C g', 'C h')
    assert question.file_and_line == f'{tmp_path}/a.csv: line 2'


def test_swag_rows_and_codah(tmp_path):
    row = json.dumps({'startphrase': 'A b. C', 'choices': ['d', 'e'], 'answer': 1})
    [question] = read(tmp_path / 'a.jsonl', row, 'swag')
    assert (question.context, question.endings, question.answer) == ('A b. C', ('d', 'e'), 1)
    [question] = read(tmp_path / 'a.tsv', 'o\tI am "\ta\tb\tc\td\t3\n', 'swag')
    assert (question.context, question.endings, question.answer) == ('I am "', ('a', 'b', 'c', 'd'), 3)


@pytest.mark.parametrize('name', ['a.txt', 'a.jsonl'])
def test_race_articles(tmp_path, name):
    first, second = read(tmp_path / name, json.dumps(ARTICLE), 'race')
    assert first.endings == ('Who a here?', 'Who b here?', 'Who c here?', 'Who d here?')
    assert second.endings[3] == 'Why? h' and second.context == 'Long text.'
    assert (first.answer, second.answer, second.id) == (1, 3, 'high1.txt-1')


def test_own_tables(tmp_path):
    content = 'key,about,ask,choice0,choice1,choice2,right\nk1,a,b?,x,y,z,C\n'
    [question] = read(tmp_path / 'a.csv', content, 'table', text='about', text_pair='ask', label='right', id='key')
    assert question == ChoiceQuestion(str(tmp_path / 'a.csv'), 'line 2', 'k1', 'a', 'b?', ('x', 'y', 'z'), 2)
    row = json.dumps({'text': 'a', 'choices': ['x', 'y'], 'label': 0})
    [question] = read(tmp_path / 'a.jsonl', row, 'table')
    assert (question.question, question.choices, question.answer, question.id) == ('', ('x', 'y'), 0, '0')


def test_only_a_test_file_may_lack_answers(tmp_path):
    content = 'text,choice0,choice1\na,x,y\n'
    assert [one.answer for one in read(tmp_path / 'a.csv', content, 'table', 'test')] == [None]
    with pytest.raises(InputError, match='a.csv: line 2: no answer'):
        read(tmp_path / 'a.csv', content, 'table', 'dev')
    article = {name: value for name, value in ARTICLE.items() if name != 'answers'}
    assert [one.answer for one in read(tmp_path / 'a.txt', json.dumps(article), 'race', 'test')] == [None, None]


@pytest.mark.parametrize(
    'name, content, format, fault',
    [
        (
            'a.csv',
            'text,choice0,label\na,x,0\n',
            'table',
            "line 1: no column 'choice1'; known: 'text', 'choice0', 'label'",
        ),
        (
            'a.csv',
            'text,choice1,choice2,label\na,x,y,1\n',
            'table',
            'line 2: the columns of choices start at choice1; answers count from choice0',
        ),
        ('a.csv', 'body,choice0,choice1\na,x,y\n', 'table', "'choice1'; set examples.text to one of them"),
        ('a.csv', 'text,choice0,choice1,label\na,x,,0\n', 'table', "line 2: field 'choice1' is empty"),
        (
            'a.csv',
            'text,choice0,choice1,label\na,x,y,2\n',
            'table',
            "line 2: field 'label' is '2'; known: 0 to 1, A to B",
        ),
        (
            'a.jsonl',
            '{"text": "a", "choices": ["x"], "label": 0}',
            'table',
            "line 1: field 'choices' is not a list of two",
        ),
        ('a.jsonl', '{"text": "a", "choices": ["x", ""], "label": 0}', 'table', "field 'choices' has an entry that"),
        ('a.tsv', 'o\tI am\ta\tb\tc\t3\n', 'swag', 'line 1: 6 fields where there are 7 columns'),
        ('a.txt', json.dumps(ARTICLE | {'answers': ['A']}), 'race', "'answers' are not lists of one length"),
        ('a.txt', json.dumps(ARTICLE | {'answers': ['A', 'E']}), 'race', "question 1: field 'answers' is 'E'"),
        ('a.txt', '[]', 'race', 'not a JSON object'),
        ('a.txt', '{"questions": []}', 'race', "no column 'article'"),
    ],
)
def test_a_fault_is_named_by_file_and_place(tmp_path, name, content, format, fault):
    with pytest.raises(InputError) as caught:
        read(tmp_path / name, content, format)
    message = str(caught.value)
    assert message.startswith(f'{tmp_path / name}: ') and fault in message and '\n' not in message


@pytest.mark.parametrize('label, answer', [('0', 0), ('3', 3), ('a', 0), ('D', 3), (None, None)])
def test_answers_are_numbers_or_letters(label, answer):
    assert answer_index(label, 4, 'f: line 1', 'label') == answer


@pytest.mark.parametrize('label', ['4', 'E', '-1', '1.0', 'AB', 'é'])
def test_other_answers_are_refused(label):
    with pytest.raises(InputError, match="f: line 1: field 'label' is .*; known: 0 to 3, A to D"):
        answer_index(label, 4, 'f: line 1', 'label')


@pytest.mark.real
def test_the_real_files_have_their_official_counts():
    counts = {'full_data.tsv': 2776}
    for fold in range(5):
        dev, test = (555, 556) if fold == 4 else (556, 555)
        counts |= {
            f'cv_split/fold_{fold}/{name}.tsv': rows for name, rows in [('train', 1665), ('dev', dev), ('test', test)]
        }
    paths = {Path('data/codah') / name: rows for name, rows in counts.items()} | {
        Path('data/swag/swag_subset500.jsonl'): 500
    }
    if not all(path.exists() for path in paths):
        pytest.skip('no data/codah or data/swag')
    for path, rows in paths.items():
        config = ExamplesConfig(problem='multiple_choice', format='swag', dev=str(path))
        questions = list(read_choices(config, 'dev'))
        assert len(questions) == rows and {len(one.choices) for one in questions} == {4}
