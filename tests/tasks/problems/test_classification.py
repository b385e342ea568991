"""Tests of classification: from logits to scores and prediction files."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import f1_score, matthews_corrcoef

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.errors import InputError
from efficient_attention.tasks.problems.classification import Classification
from efficient_attention.tasks.problems.regression import Regression
from tests.tasks.letters import letters

ENCODER = letters()


def write_table(path, rows):
    path.write_text('text,label\n' + ''.join(f'{"a" * (index % 7 + 1)},{label}\n' for index, label in enumerate(rows)))
    return str(path)


def classification(folder, rows, **options):
    path = write_table(folder / 'a.csv', rows)
    return Classification(
        ExamplesConfig(problem='classification', **{'train': path, 'dev': path, **options}), ENCODER, 6
    )


def predicted(task, split, seed=0):
    """Returns examples, features, random outputs and the predictions made from them."""
    examples = task.read_examples(split)
    features = task.encode(examples)
    rng = np.random.default_rng(seed)
    outputs = [{'logits': rng.normal(size=task.head_output_count).astype(np.float32)} for _ in features]
    return examples, features, outputs, task.predict_from_outputs(examples, features, outputs)


def test_labels_come_from_the_config_or_the_training_file(tmp_path):
    assert classification(tmp_path, ['y', 'x', 'y']).labels == ('x', 'y')
    assert classification(tmp_path, ['y', 'x'], labels=('y', 'z', 'x')).labels == ('y', 'z', 'x')
    assert classification(tmp_path, ['y'], train='', labels=('x', 'y')).head_output_count == 2
    with pytest.raises(InputError, match='examples.labels is empty, and examples.train names no file'):
        classification(tmp_path, ['y'], train='')
    with pytest.raises(InputError, match="^examples.train '.*' has only the label 'y'; a classification needs two"):
        classification(tmp_path, ['y', 'y'])
    with pytest.raises(
        InputError, match="^examples.labels has only the label 'y'; .* two; did you mean examples.label, the"
    ):
        classification(tmp_path, ['y', 'y'], labels=('y',))
    with pytest.raises(InputError, match="^examples.train '.*' has no label; a classification needs two"):
        classification(tmp_path, [])


def test_predictions_are_the_likeliest_label(tmp_path):
    task = classification(tmp_path, ['x', 'y', 'z'])
    examples, features, _, _ = predicted(task, 'dev')
    outputs = [{'logits': np.array(row, np.float32)} for row in ([0, 3, 1], [2, 0, 0], [0, 0, 9])]
    predictions = task.predict_from_outputs(examples, features, outputs)
    assert [one.label for one in predictions] == ['y', 'x', 'z']
    answer = task.prediction_to_python(predictions[0])
    assert answer['label'] == 'y' and answer['score'] == answer['scores']['y'] == max(answer['scores'].values())
    assert list(answer['scores']) == ['x', 'y', 'z'] and sum(answer['scores'].values()) == pytest.approx(1)


def test_windows_vote_by_their_mean(tmp_path):
    (tmp_path / 'a.csv').write_text('text,label\nabcdefgh,x\nb,y\n')
    path = str(tmp_path / 'a.csv')
    config = ExamplesConfig(problem='classification', train=path, dev=path, overlong='windows', stride=4)
    task = Classification(config, ENCODER, 6)
    examples = task.read_examples('dev')
    features = task.encode(examples)
    outputs = [{'logits': np.array(row, np.float32)} for row in ([1, 0], [0, 3], [4, 0])]
    assert [one.label for one in task.predict_from_outputs(examples, features, outputs)] == ['y', 'x']


@pytest.mark.parametrize('labels', ['xy', 'xyz'])
def test_scores_of_own_tables(tmp_path, labels):
    task = classification(tmp_path, [labels[index % len(labels)] for index in range(30)])
    examples, _, _, predictions = predicted(task, 'dev')
    right, guess = [one.label for one in examples], [one.label for one in predictions]
    options = {'pos_label': 'y'} if len(labels) == 2 else {'average': 'macro'}
    scores = task.score(examples, predictions, 'dev')
    assert scores['f1'] == pytest.approx(f1_score(right, guess, **options))
    assert scores['accuracy'] == pytest.approx(np.mean(np.array(right) == guess))
    assert set(scores) == task.metric_names and task.best_metric == 'accuracy'


def test_the_order_of_rows_does_not_count(tmp_path):
    task = classification(tmp_path, ['x', 'y', 'z'] * 5)
    examples, features, outputs, predictions = predicted(task, 'dev')
    order = np.random.default_rng(1).permutation(len(features))
    again = task.predict_from_outputs(
        examples, [features[place] for place in order], [outputs[place] for place in order]
    )
    assert again == predictions


def test_rows_left_out_are_not_scored(tmp_path):
    # Three of seven texts are longer than a row's four tokens.
    task = classification(tmp_path, ['x', 'y'] * 7, overlong='skip')
    examples, _, _, predictions = predicted(task, 'dev')
    assert sum(one is None for one in predictions) == 6 and task.prediction_to_python(None) is None
    kept = [(one, guess) for one, guess in zip(examples, predictions, strict=True) if guess]
    expected = np.mean([one.label == guess.label for one, guess in kept])
    assert task.score(examples, predictions, 'dev')['accuracy'] == pytest.approx(expected)
    [path] = task.write_predictions(examples, predictions, 'dev', tmp_path)
    assert len(path.read_text().splitlines()) == 8


def test_predictions_of_own_tables(tmp_path):
    task = classification(tmp_path, ['x', 'y', 'x'])
    examples, _, _, predictions = predicted(task, 'dev')
    [path] = task.write_predictions(examples, predictions, 'test', tmp_path / 'out')
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert path.name == 'predictions.jsonl' and [row['id'] for row in rows] == ['0', '1', '2']
    assert [row['label'] for row in rows] == [max(row['probabilities'], key=row['probabilities'].get) for row in rows]


def glue(folder, name, rows, *, kind=Classification, labels=(), header='sentence1\tsentence2\tlabel'):
    (folder / 'dev.tsv').write_text('\n'.join([header, *rows]))
    problem = 'regression' if kind is Regression else 'classification'
    config = ExamplesConfig(problem=problem, format='glue', name=name, dev=str(folder), test=str(folder), labels=labels)
    return kind(config, ENCODER, 16)


def test_glue_labels_and_metrics(tmp_path):
    task = glue(tmp_path, 'rte', ['a\tb\tnot_entailment'])
    assert task.labels == ('entailment', 'not_entailment') and task.metric_names == {'accuracy'}
    [feature] = task.encode(task.read_examples('dev'))
    assert int(feature['label']) == 1
    turned = glue(tmp_path, 'rte', ['a\tb\tnot_entailment'], labels=('not_entailment', 'entailment'))
    assert int(turned.encode(turned.read_examples('dev'))[0]['label']) == 0
    with pytest.raises(InputError, match='RTE has entailment, not_entailment, in any order'):
        glue(tmp_path, 'rte', [], labels=('0', '1'))
    with pytest.raises(InputError, match="examples.name 'rte' has classes; examples.problem is 'classification'"):
        glue(tmp_path, 'rte', [], kind=Regression)
    with pytest.raises(InputError, match="examples.name 'stsb' has numbers for labels"):
        glue(tmp_path, 'stsb', [])


def test_mnli_metrics_have_the_names_of_their_splits(tmp_path):
    for part, count in [('matched', 3), ('mismatched', 2)]:
        lines = ['a\tb\tneutral'] * count
        (tmp_path / f'dev_{part}.tsv').write_text('\n'.join(['sentence1\tsentence2\tgold_label', *lines]))
        lines = [f'{index}\ta\tb' for index in range(count)]
        (tmp_path / f'test_{part}.tsv').write_text('\n'.join(['index\tsentence1\tsentence2', *lines]))
    folder = str(tmp_path)
    config = ExamplesConfig(problem='classification', format='glue', name='mnli', dev=folder, test=folder)
    task = Classification(config, ENCODER, 16)
    assert task.labels == ('entailment', 'neutral', 'contradiction')
    assert task.metric_names == {'accuracy_matched', 'accuracy_mismatched'} and task.best_metric == 'accuracy_matched'
    scores = {}
    for split in task.dev_splits:
        examples, _, _, predictions = predicted(task, split)
        scores |= task.score(examples, predictions, split)
    assert set(scores) == task.metric_names
    examples, _, _, predictions = predicted(task, 'test')
    paths = task.write_predictions(examples, predictions, 'test', tmp_path / 'out')
    assert {path.name: len(path.read_text().splitlines()) for path in paths} == {'MNLI-m.tsv': 4, 'MNLI-mm.tsv': 3}


def test_labelled_test_files_are_scored_part_by_part(tmp_path):
    """MNLI's labelled test parts are scored separately; the diagnostic set is scored by Matthews' correlation."""
    tags = ['neutral', 'entailment', 'contradiction', 'neutral']
    for part in ('matched', 'mismatched'):
        lines = [f'{index}\ta {part}\tb {index}\t{tag}' for index, tag in enumerate(tags)]
        (tmp_path / f'test_{part}.tsv').write_text('\n'.join(['index\tsentence1\tsentence2\tgold_label', *lines]))
    lines = [f'\t\t\t\tNews\tc\td {index}\t{tag}' for index, tag in enumerate(tags)]
    header = 'Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain\tPremise\tHypothesis\tLabel'
    (tmp_path / 'diagnostic-full.tsv').write_text('\n'.join([header, *lines]))
    files = ','.join(f'{tmp_path}/{name}.tsv' for name in ('test_matched', 'test_mismatched', 'diagnostic-full'))
    task = Classification(ExamplesConfig(problem='classification', format='glue', name='mnli', test=files), ENCODER, 32)
    examples, _, _, predictions = predicted(task, 'test')
    assert all(map(task.is_labelled, examples)) and examples[-1].texts == ('c', 'd 3')
    guesses = [guess.label for guess in predictions]
    assert task.score(examples, predictions, 'test') == pytest.approx(
        {
            'accuracy': np.mean(np.array(guesses[:4]) == tags),
            'accuracy_mismatched': np.mean(np.array(guesses[4:8]) == tags),
            'matthews_diagnostic': matthews_corrcoef(tags, guesses[8:]),
        }
    )


def test_cola_is_scored_by_matthews(tmp_path):
    rows = [f's\t{index % 2}\t\tab' for index in range(40)]
    (tmp_path / 'dev.tsv').write_text('\n'.join(rows))
    config = ExamplesConfig(problem='classification', format='glue', name='cola', dev=str(tmp_path))
    task = Classification(config, ENCODER, 16)
    examples, _, _, predictions = predicted(task, 'dev')
    expected = matthews_corrcoef([one.label for one in examples], [one.label for one in predictions])
    assert task.score(examples, predictions, 'dev') == pytest.approx({'matthews': expected})
    assert task.best_metric == 'matthews'


@pytest.mark.real
def test_the_real_diagnostic_set_becomes_a_submission(tmp_path):
    file = Path('data/glue/diagnostic/diagnostic.tsv')
    if not file.exists():
        pytest.skip(f'no {file}')
    config = ExamplesConfig(problem='classification', format='glue', name='mnli', test=str(file))
    task = Classification(config, ENCODER, 64)
    examples, _, _, predictions = predicted(task, 'test')
    [path] = task.write_predictions(examples, predictions, 'test', tmp_path)
    lines = path.read_text().splitlines()
    assert path.name == 'AX.tsv' and len(lines) == 1105
    assert {line.split('\t')[1] for line in lines[1:]} == set(task.labels)
