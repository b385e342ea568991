"""Tests of the base class of problems: outputs match labels, notes appear once, and thresholds start empty."""

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.tasks.problems.classification import Classification
from efficient_attention.tasks.problems.regression import Regression
from tests.tasks.letters import letters


def test_there_are_as_many_outputs_as_labels_and_one_without():
    assert Regression(ExamplesConfig(problem='regression'), letters(), 8).head_output_count == 1
    config = ExamplesConfig(problem='classification', labels=('a', 'b', 'c'))
    assert Classification(config, letters(), 8).head_output_count == 3


def test_the_first_token_is_global_where_tokens_are():
    for has_global in (False, True):
        config = ExamplesConfig(problem='regression', has_global=has_global)
        task = Regression(config, letters(), 8)
        [feature] = task.encode([task.example_from_python('abc')])
        assert ('is_global' in feature) is has_global
        assert not has_global or feature['is_global'].tolist() == [True, False, False, False, False]


def test_a_note_is_said_once_for_each_input():
    task = Regression(ExamplesConfig(problem='regression', overlong='truncate'), letters(), 8)
    assert task.notes == [] and task.thresholds == {}
    long = [task.example_from_python('many letters in one row')]
    for _ in range(2):
        task.encode(long)
    assert len(task.notes) == 1 and 'cut' in task.notes[0] and task.dropped_data_notes == task.notes


def test_windows_are_noted_and_no_loss():
    task = Regression(ExamplesConfig(problem='regression', overlong='windows', stride=2), letters(), 8)
    task.encode([task.example_from_python('many letters in one row')])
    assert len(task.notes) == 1 and 'windows' in task.notes[0] and task.dropped_data_notes == []
