"""From a config's problem to its text task."""

from typing import Any

from efficient_attention.data.examples.text_encoder import TextEncoder
from efficient_attention.data.examples_config import ExamplesConfig
from efficient_attention.tasks.problems.classification import Classification, Regression
from efficient_attention.tasks.problems.multi_hop import MultiHop
from efficient_attention.tasks.problems.multiple_choice import MultipleChoice
from efficient_attention.tasks.problems.problem import TextTask
from efficient_attention.tasks.problems.question_answering import QuestionAnswering
from efficient_attention.tasks.problems.token_classification import TokenClassification

TEXT_TASKS: dict[str, type[TextTask]] = {
    'classification': Classification,
    'regression': Regression,
    'token_classification': TokenClassification,
    'multiple_choice': MultipleChoice,
    'question_answering': QuestionAnswering,
    'multi_hop': MultiHop,
}


def make_text_task(config: ExamplesConfig, encoder: TextEncoder, length: int) -> TextTask[Any, Any]:
    """The text task of `config.problem`; raises InputError where the config does not serve it."""
    return TEXT_TASKS[config.problem](config, encoder, length)
