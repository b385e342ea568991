"""Maps the names in `examples.problem` to the classes of the fine-tuning problems."""

import importlib
from typing import Any

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.text_encoder import TextEncoder
from efficient_attention.tasks.problems.problem import Problem

# The dotted paths let a run import only the module of its problem.
PROBLEMS = {
    'classification': 'efficient_attention.tasks.problems.classification.Classification',
    'regression': 'efficient_attention.tasks.problems.regression.Regression',
    'token_classification': 'efficient_attention.tasks.problems.token_classification.TokenClassification',
    'multiple_choice': 'efficient_attention.tasks.problems.multiple_choice.MultipleChoice',
    'question_answering': 'efficient_attention.tasks.problems.question_answering.QuestionAnswering',
    'multi_hop': 'efficient_attention.tasks.problems.multi_hop.MultiHop',
}


def problem_type(name: str) -> type[Problem]:
    """Returns the class of a fine-tuning problem by its name in a config."""
    module, kind = PROBLEMS[name].rsplit('.', 1)
    return getattr(importlib.import_module(module), kind)


def make_problem(config: ExamplesConfig, encoder: TextEncoder, length: int) -> Problem[Any, Any]:
    """Returns the fine-tuning problem that `config.problem` names; raises InputError if the config does not fit it."""
    return problem_type(config.problem)(config, encoder, length)
