"""Tests of the config group `eval`: values out of range are named."""

import pytest

from efficient_attention.config.dict_conversion import from_dict
from efficient_attention.config.evaluation import EvalConfig, has_held_out
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError


@pytest.mark.parametrize(
    'fields, line',
    [
        ({'split': 'train'}, "eval.split is 'train'"),
        ({'stride': -1}, 'eval.stride'),
        ({'context': 8, 'stride': 9}, 'eval.stride is 9, above eval.context 8: tokens would be left out'),
        ({'batch_size': 0}, 'eval.batch_size'),
        ({'compressed_length': -2}, 'eval.compressed_length is -2'),
        ({'every_steps': 0}, 'eval.every_steps'),
    ],
)
def test_bad_values_are_named(fields: dict, line: str):
    with pytest.raises(InputError, match=line):
        EvalConfig(**fields)


def test_what_a_run_is_evaluated_on():
    assert has_held_out(0.1, 'held_out') and has_held_out(0.0, 'test') and not has_held_out(0.0, 'held_out')


def test_a_run_checks_what_depends_on_other_fields():
    model = {'attention': 'causal', 'token_types': 0, 'max_length': 64}
    run = {'task': 'language_modelling', 'data': {'length': 32, 'units': 'bytes'}, 'model': model}
    with pytest.raises(InputError, match='eval.stride is 33, above data.length 32'):
        from_dict(run | {'eval': {'stride': 33}}, RunConfig)
    with pytest.raises(InputError, match='eval.context 65 is beyond the position table, model.max_length 64'):
        from_dict(run | {'eval': {'context': 65}}, RunConfig)
    assert from_dict(run | {'eval': {'context': 64, 'stride': 33}}, RunConfig).eval.stride == 33
    with pytest.raises(InputError, match='eval.context is 64; the task pretraining does not read it'):
        from_dict({'eval': {'context': 64}}, RunConfig)
