"""From a config's task name to the task."""

from collections.abc import Callable
from typing import Any

from efficient_attention.config.data import DataConfig
from efficient_attention.config.evaluation import EvalConfig
from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.tasks.fine_tuning import FineTuningTask
from efficient_attention.tasks.language_modelling import LanguageModellingTask
from efficient_attention.tasks.pretraining import PretrainingTask
from efficient_attention.tasks.task import Task


def make_task(
    name: str,
    data: DataConfig,
    model: ModelConfig,
    *,
    batch_size: int,
    evaluation: EvalConfig,
    seed: int,
    fine_tuning: tuple[ExamplesConfig, HeadConfig],
) -> Task:
    """The task `name` with its data prepared; raises KeyError for a name that the config check should have refused.

    `fine_tuning`: what the task of this name reads beside the rest.
    """
    common: dict[str, Any] = {'batch_size': batch_size, 'evaluation': evaluation, 'seed': seed}
    if name == 'fine_tuning':
        examples, head = fine_tuning
        return FineTuningTask(data, model, examples=examples, head=head, **common)
    kinds: dict[str, Callable[..., Task]] = {
        'pretraining': PretrainingTask,
        'language_modelling': LanguageModellingTask,
    }
    return kinds[name](data, model, **common)
