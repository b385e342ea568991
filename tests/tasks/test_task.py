"""Tests of the base class of tasks: which methods a task must define for the training and evaluation loops."""

import pytest

from efficient_attention.config.run import RunConfig
from efficient_attention.tasks.language_modelling import LanguageModellingTask
from efficient_attention.tasks.pretraining import PretrainingTask
from efficient_attention.tasks.task import Task

METHODS = {
    '__init__',
    'make_model',
    'training_batches',
    'evaluation_batches',
    'finish_metrics',
    'training_flops',
    'save_assets',
}


def test_a_task_that_lacks_a_method_cannot_be_made():
    assert Task.__abstractmethods__ == METHODS
    with pytest.raises(TypeError, match='abstract'):
        Task()


@pytest.mark.parametrize('task', [PretrainingTask, LanguageModellingTask])
def test_each_task_defines_them_all(task: type[Task]):
    assert issubclass(task, Task) and not task.__abstractmethods__


def test_a_task_without_data_is_set_up_and_nothing_else(monkeypatch):
    """A task without data reads no files; only tasks whose sizes follow from the config define the methods for it."""
    for method in (lambda: Task.set_up_from_config(Task, RunConfig()), lambda: Task.batch_shapes(Task)):
        with pytest.raises(NotImplementedError):
            method()
    monkeypatch.setattr(PretrainingTask, '__init__', lambda *_: pytest.fail('data are read'))
    task = PretrainingTask.without_data(RunConfig())
    assert not hasattr(task, 'corpus') and task.batch_shapes()['tokens'].shape == (32, 128)
