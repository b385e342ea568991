"""Tests that every problem of a config has its class, with a head that exists."""

import pytest

from efficient_attention.config import examples as examples_config
from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.config.head import KINDS
from efficient_attention.tasks.problems.registry import PROBLEMS, make_problem, problem_type
from tests.tasks.letters import letters

FORMATS = {'question_answering': 'squad', 'multi_hop': 'hotpotqa'}


def test_every_problem_has_its_class():
    assert set(PROBLEMS) == set(examples_config.PROBLEMS) - {'none'}


@pytest.mark.parametrize('problem', PROBLEMS)
def test_a_problem_says_what_it_needs(problem: str):
    config = ExamplesConfig(
        problem=problem,
        format=FORMATS.get(problem, 'table'),
        overlong='windows',
        labels=('a', 'b') if 'classif' in problem else (),
    )
    task = make_problem(config, letters(), 128)
    assert type(task) is problem_type(problem)
    assert task.head in KINDS and task.best_metric in task.metric_names and task.best_mode in ('min', 'max')
