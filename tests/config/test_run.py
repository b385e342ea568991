"""Tests that the groups of a config agree with each other, and that each unsuitable field is refused in one line."""

import json
import re
from typing import Any

import pytest

from efficient_attention.config.data import DataConfig
from efficient_attention.config.dict_conversion import from_dict, to_dict
from efficient_attention.config.field_metadata import TASKS, unread_fields
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError


def test_rows_longer_than_the_position_table_are_refused():
    data, model = DataConfig(length=64), ModelConfig(max_length=32)
    with pytest.raises(
        InputError,
        match=r'^data\.length 64 is beyond the position table, model\.max_length 32; set data\.length to at most 32$',
    ):
        RunConfig(data=data, model=model)
    RunConfig(data=data, model=ModelConfig(max_length=32, positions='sinusoidal'))


def test_an_axial_shape_has_the_length_of_the_rows():
    axial = {'positions': 'axial', 'axial_shape': (4, 16), 'axial_widths': (64, 64)}
    line = r'^model\.axial_shape \(4, 16\) has 64 positions; their number must be data\.length 128$'
    with pytest.raises(InputError, match=line):
        RunConfig(data=DataConfig(length=128), model=ModelConfig(**axial))
    config = RunConfig(data=DataConfig(length=64), model=ModelConfig(**axial))
    assert from_dict(json.loads(json.dumps(to_dict(config))), RunConfig) == config
    with pytest.raises(InputError, match=r'^model\.axial_shape is \[4, 16\.0\]; it must be a list of whole numbers$'):
        from_dict({'model': axial | {'axial_shape': [4, 16.0]}}, RunConfig)


def test_rows_longer_than_the_table_of_untied_positions_are_refused():
    model = ModelConfig(max_length=32, positions='none', relative='tupe')
    with pytest.raises(
        InputError,
        match=r'^data\.length 64 is beyond the position table, model\.max_length 32; set data\.length to at most 32$',
    ):
        RunConfig(data=DataConfig(length=64), model=model)


def test_the_models_vocabulary_holds_the_tokenizers():
    with pytest.raises(InputError, match=r'^model\.vocab_size 100 is below data\.vocab_size 200$'):
        RunConfig(data=DataConfig(vocab_size=200), model=ModelConfig(vocab_size=100))


def test_fine_tuning_needs_a_problem_and_an_early_stop_a_metric():
    with pytest.raises(InputError, match=r"^examples\.problem is 'none'; the task fine_tuning needs one$"):
        from_dict({'task': 'fine_tuning'}, RunConfig)
    with pytest.raises(InputError, match=r'^train\.early_stop is 2; it needs checkpoint\.best_metric$'):
        from_dict({'task': 'fine_tuning', 'examples': {'problem': 'regression'}, 'train': {'early_stop': 2}}, RunConfig)


def test_sentence_pairs_need_two_token_types_or_none():
    data = DataConfig(pairs='sop')
    with pytest.raises(InputError, match=r"^model\.token_types 1 is too few for data\.pairs 'sop'"):
        RunConfig(data=data, model=ModelConfig(token_types=1))
    RunConfig(data=data, model=ModelConfig(token_types=0))


NEED_OTHERS = (
    'data.image_shape',
    'data.test',
    'data.min_count',
    'model.dense_output_bias',
    'model.target_vocab_size',
    'pairs.target_vocab_size',
    'model.source_reading',
    'model.input_feeding',
    'model.initial_state',
    'model.readout',
    'model.layer_heads',
    'model.layer_units',
    'model.float_layers',
    'model.ranks',
    'model.compressed_length',
    'examples.cache',
    'model.compression_rate',
    'model.reconstruction_weight',
)  # each is refused before this check unless another field is set


@pytest.mark.parametrize(
    'task, field',
    [(task, field) for task in TASKS for field in unread_fields(RunConfig(), task) if field not in NEED_OTHERS],
)
def test_a_field_that_the_task_does_not_read_must_keep_its_value(task: str, field: str):
    values: dict = {'task': task, 'data': {}, 'model': {'token_types': 0}}
    values |= {'examples': {'problem': 'regression'}} if task == 'fine_tuning' else {}
    if task == 'text_to_text':
        values |= {'pairs': {'train': 'toy:copy:9:1-5'}, 'model': {'token_types': 0, 'decoder_layers': 1}}
    from_dict(values, RunConfig)
    group, name = field.split('.')
    known = {'pairs': 'sop', 'units': 'bytes', 'splitting': 'end', 'batches': 'streams', 'split': 'test'}
    known |= {'mask_unit': 'word', 'max_ngram': 2, 'problem': 'regression', 'format': 'glue', 'overlong': 'error'}
    known |= {'kind': 'span', 'transform': 'relu', 'labels': ['yes'], 'prefix': ['a'], 'penalty': 'length'}
    known |= {
        'quantization': 'int8',
        'compression': 'mean',
        'pooling': 'mean',
        'features': 'mix',
        'name': 'bart',
        'mean_span': 2.0,
        'mixing_temperature': 2.0,
    }
    known |= {'samples': 5, 'stop': 'first', 'cross_attention': 'window(4)', 'decoder_attention': 'causal & window(4)'}
    if group == 'prune':
        known |= {'method': 'random', 'attention': 'head', 'feed_forward': 'unit', 'scope': 'global'}
        known |= {'end': 0.9, 'penalty': 2.0}
    known |= {'layers': 'last', 'projection': 'one'} | ({'labels': 0.5} if group == 'distill' else {})
    _, usual = unread_fields(RunConfig(), task)[field]
    by_type: dict[type, Any] = {bool: not usual, tuple: [7], float: 0.05, str: 'other'}
    other = known.get(name, by_type.get(type(usual), 3))
    shown = tuple(other) if isinstance(other, list) else other
    values.setdefault(group, {})[name] = other
    with pytest.raises(
        InputError, match=rf'^{group}\.{name} is {re.escape(repr(shown))}; the task {task} does not read it, so it must'
    ):
        from_dict(values, RunConfig)


@pytest.mark.parametrize('task, decoder_layers', [('pretraining', 0), ('text_to_text', 1)])
def test_distances_of_transformer_xl_are_for_decoders_alone(task: str, decoder_layers: int):
    model = {'relative': 'transformer_xl', 'positions': 'none', 'attention': 'causal', 'token_types': 0}
    values = {'task': task, 'model': model | {'decoder_layers': decoder_layers}}
    values |= {'pairs': {'train': 'toy:copy:9:1-5'}} if decoder_layers else {}
    with pytest.raises(
        InputError, match=rf"^model.relative is 'transformer_xl'; it must be another in the task {task}"
    ):
        from_dict(values, RunConfig)
