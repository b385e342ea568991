"""Every task that a config may name is in the registry."""

import pytest

from efficient_attention.config.evaluation import EvalConfig
from efficient_attention.config.fields import TASKS
from efficient_attention.tasks import registry
from efficient_attention.tasks.registry import make_task


class Recorded:
    def __init__(self, *arguments: object, **options: object) -> None:
        self.arguments, self.options = arguments, options


CLASSES = {
    'pretraining': 'PretrainingTask',
    'language_modelling': 'LanguageModellingTask',
    'fine_tuning': 'FineTuningTask',
}
OPTIONS = {'batch_size': 8, 'evaluation': EvalConfig(batch_size=4), 'seed': 1}


@pytest.mark.parametrize('name', TASKS)
def test_the_task_gets_what_it_is_made_of(monkeypatch, name: str):
    monkeypatch.setattr(registry, CLASSES[name], Recorded)
    task = make_task(name, 'data', 'model', **OPTIONS, fine_tuning=('examples', 'head'))
    assert task.arguments == ('data', 'model')
    own = {'examples': 'examples', 'head': 'head'} if name == 'fine_tuning' else {}
    assert task.options == OPTIONS | own


def test_an_unknown_name_is_a_mistake_of_the_program():
    with pytest.raises(KeyError):
        make_task('translation', 'data', 'model', **OPTIONS, fine_tuning=('examples', 'head'))
