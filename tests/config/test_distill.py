"""Tests of the config group `distill`: which fields need a teacher, and which fields exclude each other."""

from typing import Any

import pytest

from configs.lm.common import language_modelling_config
from configs.text_to_text.common import text_to_text_config
from efficient_attention.config.dict_conversion import from_dict
from efficient_attention.config.distill import DistillConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.config.train import TrainConfig
from efficient_attention.errors import InputError


@pytest.mark.parametrize(
    'fields, message',
    [
        (
            {'temperature': 2.0},
            "distill.teacher is empty: name the teacher's folder there, or distill nothing, with distill.temperature=1",
        ),
        (
            {'labels': 0.0, 'hidden': 1.0},
            'distill.teacher is empty: .*, with distill.labels=1.0, distill.hidden=0.0$',
        ),
        ({'teacher': 'a', 'temperature': 0.0}, r'distill.temperature is 0.0; it must be above 0'),
        ({'teacher': 'a', 'soft': -1.0}, r'distill.soft is -1.0; it must be at least 0'),
        ({'teacher': 'a', 'soft': 0.0}, 'no loss compares with it'),
        ({'teacher': 'a', 'layers': 'first'}, "distill.layers is 'first'; known: uniform, last, a list such as"),
        ({'teacher': 'a', 'projection': 'both'}, "distill.projection is 'both'; known: own, one, none"),
        ({'teacher': 'a,b', 'hidden': 1.0}, 'it must be one model with distill.hidden'),
    ],
)
def test_what_does_not_serve_is_one_line(fields: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        DistillConfig(**fields).check_no_fields_without_teacher()


def test_commas_make_an_ensemble():
    config = DistillConfig(teacher='runs/a, runs/b,')
    assert config.teacher_folders == ('runs/a', 'runs/b') and config.is_enabled and config.intermediate_loss_terms == ()
    assert not DistillConfig().is_enabled


@pytest.mark.parametrize('task', ['language_modelling', 'text_to_text'])
def test_tasks_without_soft_targets_refuse_a_teacher(task: str):
    make = {'language_modelling': language_modelling_config, 'text_to_text': text_to_text_config}
    values = make[task]().to_dict()
    values['distill']['teacher'] = 'a'
    with pytest.raises(InputError, match=f"distill.teacher is 'a'; the task {task} does not read it"):
        from_dict(values, RunConfig)


def test_layers_are_picked_from_a_checkpoint_alone():
    with pytest.raises(InputError, match=r"train.start_layers is '1,3'; it needs train.start_from"):
        TrainConfig(start_layers='1,3').check_start_checkpoint()
