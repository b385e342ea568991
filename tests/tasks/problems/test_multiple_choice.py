"""Tests of multiple choice: from files of questions to rows, and from outputs to answers."""

import json

import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.data.examples.batches import FeatureBatches
from efficient_attention.errors import InputError
from efficient_attention.inference.pipeline import Predictor
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.objectives.fine_tuning import TERM, FineTuning
from efficient_attention.tasks.problems.multiple_choice import MultipleChoice
from tests.tasks.letters import letters, spaced_letters

ENCODER = letters()
MODEL = ModelConfig(width=8, heads=2, layers=1, vocab_size=ENCODER.size, max_length=16, init_std=0.5)
CODAH = 'o\tabc\td\tef\tg\th\t1\no\ti\tj\tk\tlmno\tp\t3\n'


def task_of(folder, content=CODAH, *, length=16, encoder=ENCODER, **options):
    (folder / 'a.tsv').write_text(content)
    files = {split: str(folder / 'a.tsv') for split in ('train', 'dev', 'test')}
    return MultipleChoice(
        ExamplesConfig(problem='multiple_choice', **{'format': 'swag', **files, **options}), encoder, length
    )


def rows_of(feature):
    pairs = zip(feature['tokens'], feature['lengths'], strict=True)
    rows = [[ENCODER.tokenizer.id_to_token(id).removeprefix('##') for id in row[:length]] for row, length in pairs]
    return [''.join(row).replace('[CLS]', '<').replace('[SEP]', '|') for row in rows]


def test_a_row_for_each_choice(tmp_path):
    task = task_of(tmp_path)
    first, second = task.encode(task.read_examples('train'), is_training=True)
    assert rows_of(first) == ['<abc|d|', '<abc|ef|', '<abc|g|', '<abc|h|']
    assert (int(first['label']), int(second['label']), int(second['example'])) == (1, 3, 1)
    assert first['tokens'].shape == first['token_types'].shape == (4, 8)
    assert (first['tokens'][0, 7:] == ENCODER.pad).all() and first['tokens'].dtype == np.int32
    np.testing.assert_array_equal(first['token_types'][1], [0, 0, 0, 0, 0, 1, 1, 1])
    assert task.head_output_count == 1 and task.labels == () and task.notes == []


def test_questions_may_have_different_numbers_of_choices(tmp_path):
    """A question's loss and probabilities do not depend on the number of choices of other questions."""
    rows = [{'text': 'abc', 'choices': ['d', 'e', 'fg'][:count], 'label': 1} for count in (2, 3, 2)]
    file = tmp_path / 'a.jsonl'
    file.write_text('\n'.join(map(json.dumps, rows)))
    config = ExamplesConfig(problem='multiple_choice', train=str(file), dev=str(file))
    task = MultipleChoice(config, ENCODER, 16)
    examples = task.read_examples('dev')
    features = task.encode(examples)
    model = nnx.jit(lambda: FineTuningModel(MODEL, HeadConfig(kind='choice'), rngs=nnx.Rngs(7)))()
    predict = Predictor(model, length=16, pad=ENCODER.pad)
    outputs = predict(features)
    [alone] = predict(features[:1])
    assert [len(output['logits']) for output in outputs] == [3, 3, 3] and len(alone['logits']) == 2
    np.testing.assert_allclose(outputs[0]['logits'][:2], alone['logits'], atol=1e-5)
    found = task.predict_from_outputs(examples, features, outputs)
    assert [len(one.probabilities) for one in found] == [2, 3, 2]
    assert all(sum(one.probabilities) == pytest.approx(1) for one in found)
    objective, losses = FineTuning(HeadConfig(kind='choice')), []
    loss_of = nnx.jit(lambda model, batch: objective.sums(model, batch, None, None)[0][TERM]['loss'])
    for some in (features, features[:1]):
        [batch] = FeatureBatches(some, (16,), 16, 4, ENCODER.pad).evaluation_batches(0, 1)
        losses.append(loss_of(model, {name: array[batch['index'] == 0] for name, array in batch.items()}))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_the_pad_is_the_encoders(tmp_path):
    encoder = spaced_letters()
    first, _ = task_of(tmp_path, encoder=encoder).encode(task_of(tmp_path, encoder=encoder).read_examples('dev'))
    assert encoder.pad == 1 and first['tokens'][0, first['lengths'][0] :].tolist() == [1]


def test_long_contexts(tmp_path):
    long = 'o\tabcdefgh\tij\tk\tl\tm\t0\n'
    task = task_of(tmp_path, long, length=8)
    [feature] = task.encode(task.read_examples('train'))
    assert rows_of(feature) == ['<abc|ij|', '<abcd|k|', '<abcd|l|', '<abcd|m|']
    assert task.notes == [f'{tmp_path}/a.tsv: 1 of 1 rows have more than data.length 8 tokens and were cut']
    task = task_of(tmp_path, long, length=8, overlong='skip')
    examples = task.read_examples('dev')
    assert task.encode(examples) == [] and task.predict_from_outputs(examples, [], []) == [None]
    assert task.notes[0].endswith('and were left out') and task.prediction_to_python(None) is None
    task = task_of(tmp_path, long, length=8, overlong='error')
    with pytest.raises(InputError, match="a.tsv: line 1: fields 'context' and 'ending' have 10 tokens"):
        task.encode(task.read_examples('train'))


def test_windows_of_the_context_stand_beside_whole_endings(tmp_path):
    task = task_of(tmp_path, 'o\tabcdefgh\tij\tk\tl\tm\t0\n', length=8, overlong='windows', stride=3)
    examples = task.read_examples('dev')
    features = task.encode(examples)
    assert [rows_of(one)[:2] for one in features] == [
        ['<abc|ij|', '<abc|k|'],
        ['<def|ij|', '<def|k|'],
        ['<gh|ij|', '<gh|k|'],
    ]
    assert task.notes[0].endswith('and became 3 windows')
    outputs = [{'logits': np.array(row, np.float32)} for row in ([1, 0, 0, 0], [0, 3, 0, 0], [1, 0, 0, 0])]
    [prediction] = task.predict_from_outputs(examples, features, outputs)
    assert prediction.index == 1
    with pytest.raises(InputError, match='a.tsv: line 1: a choice has 4 tokens with its question'):
        short = task_of(tmp_path, 'o\tabcdefgh\tijkl\tk\tl\tm\t0\n', length=8, overlong='windows')
        short.encode(short.read_examples('train'))


def test_accuracy_and_files(tmp_path):
    task = task_of(tmp_path)
    examples = task.read_examples('dev')
    features = task.encode(examples)
    outputs = [{'logits': np.array(row, np.float32)} for row in ([0, 5, 0, 0], [5, 0, 0, 0])]
    predictions = task.predict_from_outputs(examples, features, outputs)
    assert task.score(examples, predictions, 'dev') == {'accuracy': 0.5}
    assert task.score(examples, [predictions[0], None], 'dev') == {'accuracy': 1.0}
    [path] = task.write_predictions(examples, predictions, 'test', tmp_path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert path.name == 'predictions.jsonl' and [(row['id'], row['label']) for row in rows] == [('0', 1), ('1', 0)]
    assert sum(rows[0]['probabilities']) == pytest.approx(1)
    assert [row['choice'] for row in rows] == [examples[0].choices[1], examples[1].choices[0]]
    assert [(row['context'], row['question']) for row in rows] == [(one.context, one.question) for one in examples]


def test_questions_without_answers_cannot_be_scored(tmp_path):
    (tmp_path / 'a.csv').write_text('text,choice0,choice1\na,b,c\n')
    task = task_of(tmp_path, format='table', test=str(tmp_path / 'a.csv'))
    examples = task.read_examples('test')
    features = task.encode(examples)
    predictions = task.predict_from_outputs(examples, features, [{'logits': np.zeros(2, np.float32)}])
    assert 'label' not in features[0]
    with pytest.raises(InputError, match='a.csv: line 2: no answer to compare the prediction with'):
        task.score(examples, predictions, 'test')


def test_inputs_and_answers_of_a_pipeline(tmp_path):
    task = task_of(tmp_path)
    question = task.example_from_python({'context': 'ab', 'question': 'c _', 'choices': ['d', 'e', 'f']})
    [feature] = task.encode([question])
    assert rows_of(feature) == ['<ab|cd|', '<ab|ce|', '<ab|cf|']
    [prediction] = task.predict_from_outputs([question], [feature], [{'logits': np.array([0, 0, 9], np.float32)}])
    answer = task.prediction_to_python(prediction)
    assert (answer['choice'], answer['index']) == ('f', 2) and answer['score'] == max(answer['scores'])
    assert json.loads(json.dumps(answer)) == answer
    bad = [
        'text',
        {'context': 'a'},
        {'context': '', 'choices': ['a', 'b']},
        {'context': 'a', 'choices': ['a']},
        {'context': 'a', 'choices': ['a', 5]},
        {'context': 'a', 'choices': ['a', 'b'], 'other': 1},
        {'context': 'a', 'choices': ['a', 'b'], 'question': 5},
    ]
    for value in bad:
        with pytest.raises(InputError, match='input'):
            task.example_from_python(value)


def test_formats_must_serve(tmp_path):
    with pytest.raises(InputError, match="examples.format is 'glue'; multiple choice reads swag, race, table"):
        task_of(tmp_path, format='glue')
    assert task_of(tmp_path, dev='').dev_splits == ()
