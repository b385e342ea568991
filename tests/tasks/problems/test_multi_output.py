"""Tests of rows with several numbers or several labels: raw outputs, or a probability for each label."""

import json
from pathlib import Path

import numpy as np
import pytest

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.labelled_text import LabelledText
from efficient_attention.errors import InputError
from efficient_attention.tasks.problems.multi_output import MultiOutputProblem
from tests.tasks.problems.test_classification import ENCODER

OUTPUTS = [{'logits': np.array([2.86, -0.396, -1.5], np.float32)}, {'logits': np.array([0.0, 1.0, 0.0], np.float32)}]


def test_rows_of_one_text_are_averaged_and_written(tmp_path: Path):
    config = ExamplesConfig(problem='classification', labels=('a', 'b', 'c'))
    numbers = MultiOutputProblem(config, ENCODER, 16, is_multi_label=False)
    assert numbers.head_output_count == 3
    examples = [LabelledText('', 'row', str(number), ('the dog',)) for number in range(3)]
    features = [{'example': np.array(number)} for number in (0, 2)]
    first, left_out, last = numbers.predict_from_outputs(examples, features, OUTPUTS)
    assert numbers.prediction_to_python(first) == {
        'scores': pytest.approx({'a': 2.86, 'b': -0.396, 'c': -1.5}, abs=1e-6)
    }
    assert left_out is None and numbers.prediction_to_python(left_out) is None
    assert last == {'a': 0, 'b': 1, 'c': 0}
    [both] = numbers.predict_from_outputs(examples[:1], [{'example': np.array(0)}] * 2, OUTPUTS)
    assert both == pytest.approx({'a': 1.43, 'b': 0.302, 'c': -0.75}, abs=1e-6)
    [file] = numbers.write_predictions(examples, [first, left_out, last], 'test', tmp_path)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row['id'] for row in rows] == ['0', '2'] and rows[1]['scores'] == last
    labels = MultiOutputProblem(config, ENCODER, 16, is_multi_label=True)
    answer = labels.prediction_to_python(labels.predict_from_outputs(examples, features, OUTPUTS)[0])
    assert answer == {
        'labels': ['a'],
        'scores': pytest.approx({'a': 1 / (1 + np.exp(-2.86)), 'b': 0.402274, 'c': 0.182426}, abs=1e-5),
    }


def test_labels_of_rows_are_refused():
    task = MultiOutputProblem(ExamplesConfig(problem='classification', labels=('a',)), ENCODER, 16, is_multi_label=True)
    with pytest.raises(InputError, match="^rows.csv: line 2: field 'label' is 'x'; .* leave the column out$"):
        task.label_array(LabelledText('rows.csv', 'line 2', '', ('a',), 'x'))
