"""From nested dicts to a run's config and back, and one line for each field that does not serve."""

import json
import re
from typing import Any

import pytest

from efficient_attention.config.data import DataConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.run import NOT_READ, RunConfig, default_fields, from_dict, to_dict
from efficient_attention.errors import InputError


def test_nothing_given_is_the_default():
    assert from_dict({}) == RunConfig()


def test_a_config_survives_json():
    groups = {'model': {'width': 48, 'heads': 3}, 'optimizer': {'no_decay': ('bias$', 'norm')}, 'data': {'length': 64}}
    config = from_dict(groups)
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    assert config.optimizer.no_decay == ('bias$', 'norm')


def test_default_fields_are_those_before_derived_values():
    fields = default_fields()
    assert fields['model']['head_width'] == 0 and to_dict(RunConfig())['model']['head_width'] == 64
    fields['model'] |= {'width': 96, 'heads': 3}
    assert from_dict(fields).model.head_width == 32


def test_an_integer_serves_where_a_float_is_wanted():
    rate = from_dict({'optimizer': {'learning_rate': 1}}).optimizer.learning_rate
    assert rate == 1.0 and isinstance(rate, float)


@pytest.mark.parametrize(
    'values, message',
    [
        ({'model': {'widht': 3}}, r'^unknown config field model\.widht; known: width, heads, '),
        ({'modle': {}}, r'^unknown config field modle; known: task, data, examples, '),
        ({'model': 3}, r'^model is 3; it must be a group of fields$'),
        ({'model': {'width': '128'}}, r"^model\.width is '128'; it must be of type int$"),
        ({'model': {'width': 128.0}}, r'^model\.width is 128\.0; it must be of type int$'),
        ({'model': {'rotary': 1}}, r'^model\.rotary is 1; it must be of type bool$'),
        ({'train': {'steps': True}}, r'^train\.steps is True; it must be of type int$'),
        ({'data': {'source': None}}, r'^data\.source is None; it must be of type str$'),
        ({'optimizer': {'learning_rate': '1e-3'}}, r"^optimizer\.learning_rate is '1e-3'; it must be of type float$"),
        ({'optimizer': {'no_decay': 'bias$'}}, r"^optimizer\.no_decay is 'bias\$'; it must be a list"),
        ({'optimizer': {'no_decay': 3}}, r'^optimizer\.no_decay is 3; it must be a list'),
        ({'optimizer': {'no_decay': [3]}}, r'^optimizer\.no_decay is \[3\]; it must be a list'),
        ([], r'^the config is \[\]; it must be a group of fields$'),
        ({'task': 'translation'}, r"^task is 'translation'; known: pretraining, language_modelling, fine_tuning$"),
    ],
)
def test_unknown_fields_and_wrong_types_are_named(values: dict, message: str):
    with pytest.raises(InputError, match=message):
        from_dict(values)


@pytest.mark.parametrize(
    'group, field, value',
    [
        ('train', 'steps', 0),
        ('train', 'batch_size', 0),
        ('train', 'micro_batches', 0),
        ('train', 'log_every_steps', 0),
        ('train', 'max_skipped_in_row', 0),
        ('train', 'seed', -1),
        ('eval', 'every_steps', 0),
        ('eval', 'batch_size', -8),
    ],
)
def test_numbers_out_of_range_are_named(group: str, field: str, value: int):
    with pytest.raises(InputError, match=rf'^{group}\.{field} is {value}; it must lie in '):
        from_dict({group: {field: value}})


def test_rows_longer_than_the_position_table_are_refused():
    data, model = DataConfig(length=64), ModelConfig(max_length=32)
    with pytest.raises(InputError, match=r'^data\.length 64 is beyond the position table, model\.max_length 32$'):
        RunConfig(data=data, model=model)
    RunConfig(data=data, model=ModelConfig(max_length=32, positions='sinusoidal'))


def test_an_axial_shape_has_the_length_of_the_rows():
    axial = {'positions': 'axial', 'axial_shape': (4, 16), 'axial_widths': (64, 64)}
    line = r'^model\.axial_shape \(4, 16\) has 64 positions; their number must be data\.length 128$'
    with pytest.raises(InputError, match=line):
        RunConfig(data=DataConfig(length=128), model=ModelConfig(**axial))
    config = RunConfig(data=DataConfig(length=64), model=ModelConfig(**axial))
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    with pytest.raises(InputError, match=r'^model\.axial_shape is \[4, 16\.0\]; it must be a list of whole numbers$'):
        from_dict({'model': axial | {'axial_shape': [4, 16.0]}})


def test_rows_longer_than_the_table_of_untied_positions_are_refused():
    model = ModelConfig(max_length=32, positions='none', relative='tupe')
    with pytest.raises(InputError, match=r'^data\.length 64 is beyond the position table, model\.max_length 32$'):
        RunConfig(data=DataConfig(length=64), model=model)


def test_the_models_vocabulary_holds_the_tokenizers():
    with pytest.raises(InputError, match=r'^model\.vocab_size 100 is below data\.vocab_size 200$'):
        RunConfig(data=DataConfig(vocab_size=200), model=ModelConfig(vocab_size=100))


def test_fine_tuning_needs_a_problem_and_an_early_stop_a_metric():
    with pytest.raises(InputError, match=r"^examples\.problem is 'none'; the task fine_tuning needs one$"):
        from_dict({'task': 'fine_tuning'})
    with pytest.raises(InputError, match=r'^train\.early_stop is 2; it needs checkpoint\.best_metric$'):
        from_dict({'task': 'fine_tuning', 'examples': {'problem': 'regression'}, 'train': {'early_stop': 2}})


def test_sentence_pairs_need_two_token_types_or_none():
    data = DataConfig(pairs='sop')
    with pytest.raises(InputError, match=r"^model\.token_types 1 is too few for data\.pairs 'sop'"):
        RunConfig(data=data, model=ModelConfig(token_types=1))
    RunConfig(data=data, model=ModelConfig(token_types=0))


NEED_OTHERS = ('data.image_shape', 'data.test', 'data.min_count')  # refused before, without what they go with


@pytest.mark.parametrize(
    'task, field',
    [(task, field) for task, fields in NOT_READ.items() for field in fields if field not in NEED_OTHERS],
)
def test_a_field_that_the_task_does_not_read_must_keep_its_value(task: str, field: str):
    values: dict = {'task': task, 'data': {}, 'model': {'token_types': 0}}
    values |= {'examples': {'problem': 'regression'}} if task == 'fine_tuning' else {}
    from_dict(values)
    group, name = field.split('.')
    known = {'pairs': 'sop', 'units': 'bytes', 'splitting': 'end', 'batches': 'streams', 'split': 'test'}
    known |= {'mask_unit': 'word', 'max_ngram': 2, 'problem': 'regression', 'format': 'glue', 'overlong': 'error'}
    known |= {'kind': 'span', 'transform': 'relu', 'labels': ['yes']}
    usual = NOT_READ[task][field]
    by_type: dict[type, Any] = {bool: not usual, tuple: [7], float: 0.05, str: 'other'}
    other = known.get(name, by_type.get(type(usual), 3))
    shown = tuple(other) if isinstance(other, list) else other
    values.setdefault(group, {})[name] = other
    with pytest.raises(
        InputError, match=rf'^{group}\.{name} is {re.escape(repr(shown))}; the task {task} does not read it, so it must'
    ):
        from_dict(values)
