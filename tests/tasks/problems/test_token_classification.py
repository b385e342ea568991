"""Tests of token classification: from tagged sentences to rows, and from outputs to tags."""

from pathlib import Path

import numpy as np
import pytest

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.errors import InputError
from efficient_attention.tasks.problems.token_classification import TokenClassification
from tests.tasks.letters import letters, spaced_letters

ENCODER = letters()
ENTITIES = 'ab\tB-x\nc\tI-x\nd\tO\n\ne\tO\nfgh\tB-y\n'


def task_of(folder, content=ENTITIES, *, length=16, encoder=ENCODER, **options):
    (folder / 'a.conll').write_text(content)
    files = {split: str(folder / 'a.conll') for split in ('train', 'dev', 'test')}
    config = ExamplesConfig(
        problem='token_classification', **{'format': 'conll', 'overlong': 'windows', **files, **options}
    )
    return TokenClassification(config, encoder, length)


def sure(task, features):
    """Returns outputs that predict each feature's labels, and random labels for tokens without one."""
    rubbish = np.random.default_rng(0).integers(0, len(task.labels), 1000)
    sizes = [len(feature['labels']) for feature in features]
    ids = [
        np.where(one['labels'] >= 0, one['labels'], rubbish[:size]) for one, size in zip(features, sizes, strict=True)
    ]
    return [{'logits': 9 * np.eye(len(task.labels), dtype=np.float32)[row]} for row in ids]


def test_a_label_stands_on_a_words_first_token(tmp_path):
    task = task_of(tmp_path)
    first, second = task.encode(task.read_examples('train'))
    assert task.labels == ('B-x', 'B-y', 'I-x', 'O')
    np.testing.assert_array_equal(first['labels'], [-1, 0, -1, 2, 3, -1])  # tokens: [CLS] a ##b c d [SEP]
    np.testing.assert_array_equal(second['labels'], [-1, 3, 1, -1, -1, -1])
    np.testing.assert_array_equal(second['words'], [-1, 0, 1, -1, -1, -1])
    assert (int(first['example']), int(second['example'])) == (0, 1)
    assert {one[name].dtype for one in (first, second) for name in one} == {np.dtype(np.int32)}


@pytest.mark.parametrize('encoder', [letters(), spaced_letters()])
@pytest.mark.parametrize('length, stride', [(16, 8), (7, 2), (7, 100), (4, 1)])
def test_what_is_predicted_comes_back_to_its_word(tmp_path, length, stride, encoder):
    rng = np.random.default_rng(3)
    words = [''.join(rng.choice(list('abcde'), rng.integers(1, 5))) for _ in range(60)]
    lines = [
        f'{word}\t{rng.choice(["O", "B-x", "I-x"])}\n' + '\n' * (index % 9 == 0) for index, word in enumerate(words)
    ]
    task = task_of(tmp_path, ''.join(lines), length=length, stride=stride, encoder=encoder)
    examples = task.read_examples('dev')
    features = task.encode(examples)
    assert max(len(feature['tokens']) for feature in features) <= length
    predictions = task.predict_from_outputs(examples, features, sure(task, features))
    assert [one.tags for one in predictions] == [one.tags for one in examples]
    assert task.score(examples, predictions, 'dev') == {'f1': 1, 'precision': 1, 'recall': 1, 'accuracy': 1}


def test_long_sentences_lose_no_word(tmp_path):
    task = task_of(tmp_path, 'abcdefgh\tO\n' * 4 + 'a\tB-x\n', length=6, stride=2)
    [sentence] = task.read_examples('train')
    features = task.encode([sentence])
    assert sorted(word for feature in features for word in feature['words'] if word >= 0) == list(range(5))
    assert task.notes == [
        f'{tmp_path}/a.conll: 1 of 1 rows have more than data.length 6 tokens and became {len(features)} windows'
    ]
    task = task_of(tmp_path, length=5, overlong='error')
    with pytest.raises(
        InputError, match="a.conll: line 1: field 'words' has 4 tokens; data.length 5 leaves room for 3"
    ):
        task.encode(task.read_examples('train'))
    with pytest.raises(InputError, match="examples.overlong is 'truncate', which loses words"):
        task_of(tmp_path, overlong='truncate')


def test_sentences_left_out_are_not_scored(tmp_path):
    task = task_of(tmp_path, 'abcdef\tO\n\na\tB-x\nb\tO\n', length=5, overlong='skip')
    examples = task.read_examples('dev')
    features = task.encode(examples)
    assert len(features) == 1 and task.notes[0].endswith('and were left out')
    predictions = task.predict_from_outputs(examples, features, sure(task, features))
    assert predictions[0] is None and task.prediction_to_python(None) is None
    assert task.score(examples, predictions, 'dev')['accuracy'] == 1
    assert task.write_predictions(examples, predictions, 'dev', tmp_path)[0].read_text() == 'a\tB-x\tB-x\nb\tO\tO\n\n'


def test_a_word_without_token_gets_no_entity(tmp_path):
    task = task_of(tmp_path, 'a\tB-x\n\u200b\tB-x\nb\tO\n')
    examples = task.read_examples('dev')
    features = task.encode(examples)
    assert task.notes == [f"{tmp_path}/a.conll: 1 words have no token and get 'O'"]
    [prediction] = task.predict_from_outputs(examples, features, sure(task, features))
    assert prediction.tags == ('B-x', 'O', 'O') and prediction.probabilities[1] == 0


def test_scores_of_entities_and_of_other_tags(tmp_path):
    task = task_of(tmp_path)
    examples = task.read_examples('dev')
    features = task.encode(examples)
    outputs = sure(task, features)
    outputs[0]['logits'][3] = [0, 0, 0, 9]  # The first entity's I-x becomes O.
    scores = task.score(examples, task.predict_from_outputs(examples, features, outputs), 'dev')
    assert scores == {'f1': 0.5, 'precision': 0.5, 'recall': 0.5, 'accuracy': 0.8}
    assert set(scores) == task.metric_names and task.best_metric == 'f1'
    other = task_of(tmp_path, 'a\tNOUN\nb\tVERB\n')
    assert other.metric_names == {'accuracy'} and other.best_metric == 'accuracy'


def test_tags_must_be_known(tmp_path):
    task = task_of(tmp_path, labels=('O', 'B-x', 'I-x'))
    with pytest.raises(
        InputError, match="a.conll: line 6: tag 'B-y' is not known; known .see examples.labels.: O, B-x, I-x"
    ):
        task.read_examples('dev')
    with pytest.raises(InputError, match='examples.labels is empty, and examples.train gives no tags'):
        task_of(tmp_path, train='')
    with pytest.raises(InputError, match="examples.format is 'glue'; token classification reads"):
        task_of(tmp_path, format='glue')


def test_files_of_predictions(tmp_path):
    task = task_of(tmp_path)
    examples = task.read_examples('test')
    features = task.encode(examples)
    predictions = task.predict_from_outputs(examples, features, sure(task, features))
    [path] = task.write_predictions(examples, predictions, 'test', tmp_path / 'out')
    assert path.name == 'predictions.conll'
    assert path.read_text() == 'ab\tB-x\tB-x\nc\tI-x\tI-x\nd\tO\tO\n\ne\tO\tO\nfgh\tB-y\tB-y\n\n'
    (tmp_path / 'a.conll').write_text('ab\nc\n')
    unlabelled = task.read_examples('test')
    features = task.encode(unlabelled)
    assert 'labels' not in features[0]
    with pytest.raises(InputError, match='a.conll: line 1: no tags to compare the prediction with'):
        task.score(unlabelled, predictions[:1], 'test')


def test_inputs_and_answers_of_a_pipeline(tmp_path):
    task = task_of(tmp_path)
    text = "ab c, d's  @fgh!"
    sentence = task.example_from_python(text)
    assert sentence.words == ('ab', 'c', ',', "d's", '@fgh', '!')
    assert [text[start:end] for start, end in sentence.spans] == list(sentence.words)
    [feature] = task.encode([sentence])
    logits = np.zeros((len(feature['tokens']), 4), np.float32)
    tags = dict(enumerate(['B-x', 'I-x', 'O', 'O', 'B-y', 'O']))
    for place in np.flatnonzero(feature['words'] >= 0):
        logits[place, task.labels.index(tags[int(feature['words'][place])])] = 9
    [prediction] = task.predict_from_outputs([sentence], [feature], [{'logits': logits}])
    first, second = task.prediction_to_python(prediction)
    assert (first['word'], first['label'], first['start'], first['end']) == ('ab c', 'x', 0, 4)
    assert (second['word'], second['label'], text[second['start'] : second['end']]) == ('@fgh', 'y', '@fgh')
    assert 0.99 < first['score'] <= 1


def test_tags_that_are_no_entities_are_answered_word_by_word(tmp_path):
    task = task_of(tmp_path, 'a\tNOUN\nb\tVERB\n')
    sentence = task.example_from_python(['ab', 'c'])
    [feature] = task.encode([sentence])
    [prediction] = task.predict_from_outputs([sentence], [feature], [{'logits': np.tile(np.float32([2, 0]), (5, 1))}])
    answers = task.prediction_to_python(prediction)
    assert [(one['word'], one['label'], one['start'], one['end']) for one in answers] == [
        ('ab', 'NOUN', 0, 2),
        ('c', 'NOUN', 3, 4),
    ]
    for value in ('', '  ', [], ['a', ''], 5, None):
        with pytest.raises(InputError, match='an input is a text or a list of words'):
            task.example_from_python(value)


@pytest.mark.real
@pytest.mark.parametrize(
    'folder, train, dev',
    [
        ('wnut17', 'wnut17train.conll', 'emerging.dev.conll'),
        ('ud_english_ewt', 'en_ewt-ud-train.rebuilt.conllu', 'en_ewt-ud-dev.conllu'),
    ],
)
def test_real_sentences_come_back(folder, train, dev):
    path = Path('data') / folder
    if not path.exists():
        pytest.skip(f'no {path}')
    config = ExamplesConfig(
        problem='token_classification',
        format='conll',
        train=str(path / train),
        dev=str(path / dev),
        overlong='windows',
        stride=8,
    )
    task = TokenClassification(config, ENCODER, 64)
    examples = task.read_examples('dev')
    features = task.encode(examples)
    predictions = task.predict_from_outputs(examples, features, sure(task, features))
    assert task.score(examples, predictions, 'dev')['accuracy'] > 0.999  # Only words without a token may be wrong.


@pytest.mark.parametrize(
    'content, names',
    [
        ('a\tx-B\nb\tx-I\nc\tO\n', ['x']),
        ('a\tB\nb\tI\nc\tO\n', ['_']),
        ('a\tS-x\nb\tO\n', ['x']),
        ('a\tU-x\nb\tO\n', ['x']),
        ('a\tE-x\nb\tO\n', ['x']),
        ('a\tNOUN\nb\tVERB\n', None),
    ],
)
def test_every_form_of_entities_is_scored_and_answered(tmp_path, content, names):
    task = task_of(tmp_path, content)
    examples = task.read_examples('dev')
    features = task.encode(examples)
    predictions = task.predict_from_outputs(examples, features, sure(task, features))
    scores = {'f1': 1.0, 'precision': 1.0, 'recall': 1.0} if names else {}
    assert task.score(examples, predictions, 'dev') == scores | {'accuracy': 1.0}
    assert task.metric_names == scores.keys() | {'accuracy'}
    assert [one['label'] for one in task.prediction_to_python(predictions[0])] == (names or ['NOUN', 'VERB'])
