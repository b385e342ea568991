"""The class of each problem that a config's `examples.problem` may name."""

from typing import Any

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.text_encoder import TextEncoder
from efficient_attention.tasks.problems.classification import Classification
from efficient_attention.tasks.problems.multi_hop import MultiHop
from efficient_attention.tasks.problems.multiple_choice import MultipleChoice
from efficient_attention.tasks.problems.problem import Problem
from efficient_attention.tasks.problems.question_answering import QuestionAnswering
from efficient_attention.tasks.problems.regression import Regression
from efficient_attention.tasks.problems.token_classification import TokenClassification

PROBLEMS: dict[str, type[Problem]] = {
    'classification': Classification,
    'regression': Regression,
    'token_classification': TokenClassification,
    'multiple_choice': MultipleChoice,
    'question_answering': QuestionAnswering,
    'multi_hop': MultiHop,
}


def make_problem(config: ExamplesConfig, encoder: TextEncoder, length: int) -> Problem[Any, Any]:
    """The problem of `config.problem`; raises InputError where the config does not serve it."""
    return PROBLEMS[config.problem](config, encoder, length)
