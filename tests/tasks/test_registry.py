"""Every task that a config may name is in the registry."""

import pytest

from efficient_attention.tasks import registry
from efficient_attention.tasks.evaluation_config import EvalConfig
from efficient_attention.tasks.registry import make_task
from efficient_attention.training.config import TASKS


class Recorded:
    def __init__(self, *arguments: object, **options: object) -> None:
        self.arguments, self.options = arguments, options


CLASSES = {'pretraining': 'PretrainingTask', 'language_modelling': 'LanguageModellingTask'}


@pytest.mark.parametrize('name', TASKS)
def test_the_task_gets_what_it_is_made_of(monkeypatch, name: str):
    monkeypatch.setattr(registry, CLASSES[name], Recorded)
    task = make_task(name, 'data', 'model', batch_size=8, evaluation=EvalConfig(batch_size=4), seed=1)
    assert task.arguments == ('data', 'model')
    assert task.options == {'batch_size': 8, 'evaluation': EvalConfig(batch_size=4), 'seed': 1}


def test_an_unknown_name_is_a_mistake_of_the_program():
    with pytest.raises(KeyError):
        make_task('translation', 'data', 'model', batch_size=8, evaluation=EvalConfig(batch_size=4), seed=1)
