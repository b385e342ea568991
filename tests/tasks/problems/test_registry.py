"""Every problem that a config may name has its text task, with a head that there is."""

import pytest

from efficient_attention.data.examples_config import PROBLEMS, ExamplesConfig
from efficient_attention.models.head_config import KINDS
from efficient_attention.tasks.problems.registry import TEXT_TASKS, make_text_task
from tests.tasks.letters import letters

FORMATS = {'question_answering': 'squad', 'multi_hop': 'hotpotqa'}


def test_every_problem_has_its_task():
    assert set(TEXT_TASKS) == set(PROBLEMS) - {'none'}


@pytest.mark.parametrize('problem', TEXT_TASKS)
def test_a_task_says_what_it_needs(problem: str):
    config = ExamplesConfig(
        problem=problem,
        format=FORMATS.get(problem, 'table'),
        overlong='windows',
        labels=('a', 'b') if 'classif' in problem else (),
    )
    task = make_text_task(config, letters(), 128)
    assert type(task) is TEXT_TASKS[problem]
    assert task.head in KINDS and task.best_metric in task.metric_names and task.best_mode in ('min', 'max')
