"""The seam between the loops and a task: what each task must define."""

import pytest

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
