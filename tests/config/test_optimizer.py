"""Tests of the optimizer fields: the defaults are BERT's, and every bad value gives one line that names its field."""

import math

import pytest

from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.errors import InputError


def test_defaults_are_the_published_ones_of_bert():
    config = OptimizerConfig()
    assert (config.name, config.learning_rate, config.warmup_steps, config.schedule) == ('adamw', 1e-4, 10_000, 'bert')
    assert (config.beta1, config.beta2, config.eps, config.weight_decay) == (0.9, 0.999, 1e-6, 0.01)
    assert (config.bias_correction, config.clip_norm) == (False, 1.0)


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('name', 'sgd'),
        ('schedule', 'step'),
        ('learning_rate', -1e9),
        ('learning_rate', math.nan),
        ('learning_rate', math.inf),
        ('warmup_steps', -1),
        ('end_learning_rate_ratio', 1.5),
        ('beta1', 1.0),
        ('beta2', -0.1),
        ('eps', 0.0),
        ('weight_decay', math.nan),
        ('clip_norm', -1.0),
        ('no_decay', ('(',)),
        ('no_decay', 'bias'),
        ('frozen', ('(',)),
        ('layer_decay', 0.0),
        ('layer_decay', 1.5),
        ('frozen_layers', -1),
    ],
)
def test_a_bad_value_names_its_field(field, value):
    with pytest.raises(InputError, match=rf'^optimizer\.{field} ') as caught:
        OptimizerConfig(**{field: value})
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize('schedule', ['constant', 'rsqrt'])
def test_an_end_value_is_refused_where_the_schedule_has_no_end(schedule):
    with pytest.raises(InputError, match='has no end'):
        OptimizerConfig(schedule=schedule, end_learning_rate_ratio=0.1)
