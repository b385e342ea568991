"""Tests of regression: from outputs to scores and prediction files."""

import json

import numpy as np
import pytest

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.errors import InputError
from efficient_attention.tasks.problems.regression import Regression
from tests.tasks.problems.test_classification import ENCODER, glue, predicted, write_table


def test_numbers(tmp_path):
    path = write_table(tmp_path / 'a.csv', [1, 2.5, -3])
    task = Regression(ExamplesConfig(problem='regression', train=path, dev=path), ENCODER, 16)
    examples, features, _, _ = predicted(task, 'dev')
    assert (
        task.head_output_count == 1 and [feature['label'].dtype for feature in features] == [np.dtype(np.float32)] * 3
    )
    predictions = task.predict_from_outputs(
        examples, features, [{'logits': np.array([value], np.float32)} for value in (1, 2.5, -1)]
    )
    scores = task.score(examples, predictions, 'dev')
    assert set(scores) == task.metric_names
    assert scores['mean_squared_error'] == pytest.approx(4 / 3) and scores['spearman'] == pytest.approx(1)
    assert task.prediction_to_python(predictions[1]) == {'score': 2.5} and task.prediction_to_python(None) is None
    [file] = task.write_predictions(examples, predictions, 'dev', tmp_path)
    assert json.loads(file.read_text().splitlines()[1]) == {'id': '1', 'text': 'aa', 'label': 2.5}
    write_table(tmp_path / 'a.csv', [1, 'high'])
    with pytest.raises(InputError, match="a.csv: line 3: label 'high' is not a number"):
        task.read_examples('train')


def test_stsb_is_clipped_in_its_submission(tmp_path):
    header = 'index\tsentence1\tsentence2\tscore'
    task = glue(tmp_path, 'stsb', ['0\ta\tb\t5.000', '1\tc\td\t0.500'], kind=Regression, header=header)
    (tmp_path / 'test.tsv').write_text('index\tsentence1\tsentence2\n0\ta\tb\n1\ta\tb\n2\ta\tb')
    assert task.metric_names == {'pearson', 'spearman'} and task.best_metric == 'spearman'
    assert [float(feature['label']) for feature in task.encode(task.read_examples('dev'))] == [5, 0.5]
    examples = task.read_examples('test')
    [path] = task.write_predictions(examples, [5.7, -0.1, 2.34567], 'test', tmp_path)
    assert path.name == 'STS-B.tsv'
    assert path.read_text() == 'index\tprediction\n0\t5.000\n1\t0.000\n2\t2.346\n'
