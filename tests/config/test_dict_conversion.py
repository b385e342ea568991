"""Tests that nested dicts become a config and back, and that each unsuitable field is refused in one line."""

import json

import pytest

from efficient_attention.config.dict_conversion import default_fields, flatten, from_dict, join_comma_lists, to_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError


def test_nothing_given_is_the_default():
    assert from_dict({}, RunConfig) == RunConfig()


def test_a_config_survives_json():
    groups = {'model': {'width': 48, 'heads': 3}, 'optimizer': {'no_decay': ('bias$', 'norm')}, 'data': {'length': 64}}
    config = from_dict(groups, RunConfig)
    assert from_dict(json.loads(json.dumps(to_dict(config))), RunConfig) == config
    assert config.optimizer.no_decay == ('bias$', 'norm')


def test_default_fields_are_those_before_derived_values():
    fields = default_fields(RunConfig)
    assert fields['model']['head_width'] == 0 and to_dict(RunConfig())['model']['head_width'] == 64
    fields['model'] |= {'width': 96, 'heads': 3}
    assert from_dict(fields, RunConfig).model.head_width == 32


def test_a_list_of_names_becomes_a_text_with_commas():
    given = {'train': {'trackers': ('csv', 'wandb'), 'steps': 3}, 'distill': {'layers': [2, 4]}, 'data': 3}
    joined = join_comma_lists(given, RunConfig)
    assert joined == {'train': {'trackers': 'csv,wandb', 'steps': 3}, 'distill': {'layers': '2,4'}, 'data': 3}
    assert given['train']['trackers'] == ('csv', 'wandb')


def test_an_integer_serves_where_a_float_is_wanted():
    rate = from_dict({'optimizer': {'learning_rate': 1}}, RunConfig).optimizer.learning_rate
    assert rate == 1.0 and isinstance(rate, float)


@pytest.mark.parametrize(
    'values, message',
    [
        ({'model': {'widht': 3}}, r'^unknown config field model\.widht; did you mean model\.width\?$'),
        ({'model': {'zzz': 3}}, r'^unknown config field model\.zzz; known: width, heads, '),
        ({'modle': {}}, r'^unknown config field modle; did you mean model\?$'),
        ({'zzz': {}}, r'^unknown config field zzz; known: task, data, examples, '),
        ({'model': 3}, r'^model is 3; it must be a group of fields$'),
        ({'model': {'width': '128'}}, r"^model\.width is '128'; it must be a whole number$"),
        ({'model': {'width': 128.0}}, r'^model\.width is 128\.0; it must be a whole number$'),
        ({'model': {'rotary': 1}}, r'^model\.rotary is 1; it must be true or false$'),
        ({'train': {'steps': True}}, r'^train\.steps is True; it must be a whole number$'),
        ({'data': {'source': None}}, r'^data\.source is None; it must be a text$'),
        ({'optimizer': {'learning_rate': '1e-3'}}, r"^optimizer\.learning_rate is '1e-3'; it must be a number$"),
        ({'optimizer': {'no_decay': 'bias$'}}, r"^optimizer\.no_decay is 'bias\$'; it must be a list"),
        ({'optimizer': {'no_decay': 3}}, r'^optimizer\.no_decay is 3; it must be a list'),
        ({'optimizer': {'no_decay': [3]}}, r'^optimizer\.no_decay is \[3\]; it must be a list'),
        ([], r'^the config is \[\]; it must be a group of fields$'),
        (
            {'task': 'translation'},
            r"^task is 'translation'; known: pretraining, language_modelling, fine_tuning, text_to_text$",
        ),
    ],
)
def test_unknown_fields_and_wrong_types_are_named(values: dict, message: str):
    with pytest.raises(InputError, match=message):
        from_dict(values, RunConfig)


def test_fields_have_dotted_names_and_json_values():
    assert flatten({'a': {'b': (1, 2), 'c': {}}, 'd': None}) == {'a.b': [1, 2], 'a.c': {}, 'd': None}
