import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from efficient_attention.data.examples.squad import Answer, Question, drop_misplaced_answers, read_squad
from efficient_attention.errors import InputError

DATA = Path(__file__).parents[3] / 'data' / 'squad'
SOURCES = Path(__file__).resolve().parents[1] / 'sources'
CONTEXT = 'Ada saw the sea.'


def squad(*articles):
    """Returns a data set in SQuAD's JSON format; each article is (title, context, rows)."""
    data = [{'title': title, 'paragraphs': [{'context': text, 'qas': rows}]} for title, text, rows in articles]
    return {'version': '1.1', 'data': data}


def row(id='q1', **fields):
    return {'id': id, 'question': 'Who?', 'answers': [{'text': 'Ada', 'answer_start': 0}]} | fields


def write(path, content):
    path.write_text(json.dumps(content))
    return str(path)


def test_squad_and_own_lines_give_the_same(tmp_path):
    rows = [row(), row('q2', answers=[{'text': 'sea', 'answer_start': 12}, {'text': 'the sea', 'answer_start': 8}])]
    whole = write(tmp_path / 'a.json', squad(('T', CONTEXT, rows)))
    lines = tmp_path / 'a.jsonl'
    lines.write_text('\n'.join(json.dumps(one | {'context': CONTEXT, 'title': 'T'}) for one in rows))
    first, second = (read_squad(str(path), is_labelled=True) for path in (whole, lines))
    assert [(q.id, q.question, q.context, q.answers, q.title) for q in first] == [
        (q.id, q.question, q.context, q.answers, q.title) for q in second
    ]
    assert first[1].answers == (Answer('sea', 12), Answer('the sea', 8))
    assert first[0].place == f"{whole}: question 'q1'" and second[1].place == f"{lines}: line 2: question 'q2'"


def test_prepared_and_saved_sets(monkeypatch):
    monkeypatch.setenv('TFDS_DATA_DIR', str(SOURCES / 'prepared_tfds' / 'public'))
    questions = {one.id: one for one in read_squad('tfds:squad/v2.0:train', is_labelled=True)}
    assert questions['q0'].answers == (Answer('Turin', 27), Answer('Turin', 27), Answer('Po', 10))
    assert questions['q0'].title == 'Po' and questions['q2'].answers == ()
    assert all(one.has_answer_at_start(answer) for one in questions.values() for answer in one.answers)
    assert len(read_squad('tfds:squad/v1.1:validation[:1]', is_labelled=True)) == 1
    saved = read_squad(f'{SOURCES}/saved_datasets/questions.parquet#first:1', is_labelled=True)
    assert [one.answers for one in saved] == [questions['q0'].answers]
    saved = read_squad(f'{SOURCES}/saved_datasets/questions.parquet', is_labelled=True)
    assert saved[1].answers == () and saved[1].place.endswith("questions.parquet: row 1: question 'q1'")
    with pytest.raises(InputError, match="train: row 0: no field 'id'; known: hypothesis|premise"):
        read_squad('tfds:glue/mnli:train', is_labelled=True)
    with pytest.raises(InputError, match="reviews.parquet: row 0: no field 'id'; known: text, label, stars"):
        read_squad(f'{SOURCES}/saved_datasets/reviews.parquet', is_labelled=True)


@pytest.mark.parametrize(
    'answers, fault',
    [
        (['Po'], "'answers' has no lists 'text' and 'answer_start'"),
        ({'text': ['Po']}, "'answers' has no lists 'text' and 'answer_start'"),
        ({'text': ['Po'], 'answer_start': [1, 2]}, "'text' has 1 value and 'answer_start' has 2 values"),
        ({'text': 'Po', 'answer_start': None}, "'answers' has no lists 'text' and 'answer_start'"),
        ({'text': ['Po'], 'answer_start': [None]}, "answer 0: field 'answer_start' is null, not a whole number"),
    ],
)
def test_bad_answers_of_tables(tmp_path, answers, fault):
    path = tmp_path / 'x.parquet'
    rows = {'id': ['a'], 'question': ['b'], 'context': ['c'], 'answers': [answers]}
    parquet.write_table(pyarrow.table(rows), path)
    with pytest.raises(InputError, match=fault) as caught:
        read_squad(str(path), is_labelled=True)
    assert str(caught.value).startswith(f'{path}: row 0: ')


def test_questions_without_answer(tmp_path):
    rows = [row(answers=[], is_impossible=True, plausible_answers=[{'text': 'sea', 'answer_start': 12}])]
    (question,) = read_squad(write(tmp_path / 'a.json', squad(('T', CONTEXT, rows))), is_labelled=True)
    assert question.answers == () and question.training_answer is None


def test_a_test_set_needs_no_answers(tmp_path):
    rows = [row(), row('q2')]
    del rows[1]['answers']
    path = write(tmp_path / 'a.json', squad(('T', CONTEXT, rows)))
    assert [question.answers is None for question in read_squad(path, is_labelled=False)] == [False, True]
    with pytest.raises(InputError, match="question 'q2': no field 'answers'"):
        read_squad(path, is_labelled=True)


def test_several_files_and_articles_of_one(tmp_path):
    rows = {title: [row(f'{title}{number}') for number in range(2)] for title in 'STUV'}
    first = write(tmp_path / 'a.json', squad(*((title, CONTEXT, questions) for title, questions in rows.items())))
    second = write(tmp_path / 'b.json', squad(('W', CONTEXT, [row('w')])))
    shares = [read_squad(f'{first}#articles:{share}/2,{second}', is_labelled=True) for share in range(2)]
    assert [len(share) for share in shares] == [5, 5]
    assert not {q.title for q in shares[0]} & {q.title for q in shares[1]} - {'W'}


@pytest.mark.parametrize(
    'change, message',
    [
        ({'question': ' '}, "question 'q1': field 'question' is empty"),
        ({'question': 3}, "question 'q1': field 'question' is a whole number, not a text"),
        ({'id': 7}, "article 0, paragraph 0, question 0: field 'id' is a whole number, not a text"),
        ({'answers': [{'answer_start': 3}]}, "question 'q1', answer 0: no field 'text'"),
        ({'answers': [{'text': 'Ada', 'answer_start': '0'}]}, "'answer_start' is a text, not a whole number"),
        ({'is_impossible': True}, "question 'q1': field 'is_impossible' is True, and there are 1 answers"),
        ({'answers': [], 'is_impossible': False}, "field 'is_impossible' is False, and there are 0 answers"),
    ],
)
def test_bad_fields_are_named(tmp_path, change, message):
    path = write(tmp_path / 'a.json', squad(('T', CONTEXT, [row(**change)])))
    with pytest.raises(InputError) as error:
        read_squad(path, is_labelled=True)
    assert str(error.value).startswith(path) and message in str(error.value)


@pytest.mark.parametrize(
    'content, message',
    [
        ([], 'not a JSON object'),
        ({'version': '1.1'}, "no field 'data'; known: version"),
        ({'data': [{'title': 'T'}]}, "article 0: no field 'paragraphs'"),
        ({'data': [{'paragraphs': [{'qas': [row()]}]}]}, "question 'q1': no field 'context'"),
        ({'data': [{'paragraphs': [{'context': '', 'qas': [row()]}]}]}, "field 'context' is empty"),
        ({'data': [3]}, 'article 0: not a JSON object'),
        ({'data': [{'paragraphs': [3]}]}, 'article 0, paragraph 0: not a JSON object'),
        ({'data': []}, 'no questions'),
    ],
)
def test_other_layouts_are_refused(tmp_path, content, message):
    with pytest.raises(InputError) as error:
        read_squad(write(tmp_path / 'a.json', content), is_labelled=True)
    assert message in str(error.value)


def test_answers_that_stand_elsewhere_are_left_out_with_a_note():
    right = Question('a', 'Who?', CONTEXT, (Answer('Ada', 0),))
    none = Question('b', 'Why?', CONTEXT, ())
    wrong = [Question(id, 'Who?', CONTEXT, (Answer('Ada', at),), place=id) for id, at in (('c', 1), ('d', -1))]
    assert drop_misplaced_answers([right, none]) == ([right, none], [])
    kept, (note,) = drop_misplaced_answers([wrong[0], right, none, wrong[1]])
    assert kept == [right, none]
    assert note.startswith('2 of 4 training questions are skipped') and note.endswith("the first: c: 'Ada' at 1")


def test_most_annotators_decide():
    answers = tuple(Answer(text, CONTEXT.find(text)) for text in ('Ada saw', 'Ada', 'sea', 'Ada'))
    assert Question('a', 'Who?', CONTEXT, answers).training_answer == Answer('Ada', 0)
    assert Question('a', 'Who?', CONTEXT, answers[:3]).training_answer == Answer('Ada saw', 0)


@pytest.mark.real
@pytest.mark.parametrize(
    'name, questions, articles, without',
    [
        ('train-v1.1.rebuilt.json', 87_599, 442, 0),
        ('dev-v1.1.rebuilt.json', 10_570, 48, 0),
        ('dev-v2.0.rebuilt.json', 11_873, 35, 5_945),
        ('dev-v2.0.rebuilt.json#articles:0-3/5', 9_755, 28, 4_791),
        ('dev-v2.0.rebuilt.json#articles:4/5', 2_118, 7, 1_154),
    ],
)
def test_real_counts(name, questions, articles, without):
    if not DATA.exists():
        pytest.skip('needs data/squad')
    found = read_squad(f'{DATA}/{name}', is_labelled=True)
    assert (len(found), len({question.title for question in found})) == (questions, articles)
    assert sum(not question.answers for question in found) == without
    assert drop_misplaced_answers(found) == (found, [])
