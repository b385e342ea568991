"""Tests that a run is refused if its model computes another function of its start's parameters; fields are named."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from efficient_attention.config.dict_conversion import to_dict
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.training.fill_config import fill_config
from efficient_attention.training.initial_params import InitialParams
from efficient_attention.training.start_fields import FIXED_BY_START
from tests.inference.tiny_checkpoint import write_checkpoint
from tests.interop.gpt2_folders import run_config, start_fields
from tests.training.tiny_fine_tuning import tiny_values
from tests.training.tiny_run import fresh_workdir, tiny_config

# Fields that change shapes or names of parameters, so that loading them finds the difference.
OF_SHAPES = {
    *('vocab_size', 'target_vocab_size', 'max_length', 'token_types', 'width', 'embedding_width', 'shared_table'),
    *('feed_forward_width', 'state_width', 'location_length', 'tied_output', 'output_bias', 'dense_output_bias'),
    *('adaptive_cutoffs', 'adaptive_divisor', 'axial_shape', 'axial_widths', 'axial_sum', 'layer_heads', 'layer_units'),
    *('ranks', 'layers', 'decoder_layers', 'sharing', 'directions_apart'),
}
# Fields that users change on purpose: attention, memory, precision and speed.
ON_PURPOSE = {
    *('attention', 'decoder_attention', 'cross_attention', 'attention_backend', 'shared_qk', 'global_tokens'),
    *('attention_seed', 'attention_redraw_steps', 'reinforce_weight', 'memory_length', 'clamp_length', 'same_length'),
    *('compression', 'compressed_length', 'compression_rate', 'reconstruction_weight', 'quantization', 'float_layers'),
    *('dtype', 'remat', 'scan_unroll', 'loss_chunk', 'feed_forward_chunk', 'recurrent_chunk'),
}
ONLY_TRAINING = {
    *('dropout_rate', 'attention_dropout_rate', 'feed_forward_dropout_rate', 'state_dropout_rate', 'final_dropout'),
    *('init_std', 'kernel_init'),
}


def test_every_model_field_is_fixed_by_the_start_or_not_for_a_reason():
    groups = [set(FIXED_BY_START), OF_SHAPES, ON_PURPOSE, ONLY_TRAINING]
    names = {field.name for field in dataclasses.fields(ModelConfig)}
    assert set.union(*groups) == names and sum(map(len, groups)) == len(names)


@pytest.mark.parametrize(
    ('fields', 'message', 'flags'),
    [
        ({'activation': 'relu'}, "model.activation 'gelu_tanh', not 'relu'", 'activation=gelu_tanh'),
        ({'norm_epsilon': 1e-12}, 'model.norm_epsilon 1e-05, not 1e-12', 'norm_epsilon=1e-05'),
        ({'scaled_logits': False}, 'model.scaled_logits True, not False', 'scaled_logits=True'),
        ({'embedding_scale': True}, 'model.embedding_scale False, not True', 'embedding_scale=False'),
        ({'norm': 'post'}, "model.norm 'pre', not 'post'", 'norm=pre'),
        ({'attention_bias': False}, 'model.attention_bias True, not False', 'attention_bias=True'),
        ({'rotary': True}, 'model.rotary False, not True', 'rotary=False'),
        (
            {'heads': 2},
            'model.heads 3, not 2, model.head_width 6, not 9',
            'heads=3 --config.model.head_width=6',
        ),
    ],
)
def test_a_language_model_of_another_function_is_refused(fields: dict, message: str, flags: str, tmp_path: Path):
    start = {'data.units': 'tokenizer'} | start_fields(tmp_path)
    config = run_config(tmp_path / 'corpus', **start, **{f'model.{name}': value for name, value in fields.items()})
    said = f'train.start_from {tmp_path}/gpt2 was trained with {message}; use its values: --config.model.{flags}'
    with pytest.raises(InputError, match=f'^{re.escape(said)}$'):
        InitialParams(config).pretrained  # noqa: B018  a property that opens the checkpoint


@pytest.mark.parametrize(
    'fields',
    [
        {'attention': 'causal & window(4)', 'dropout_rate': 0.3, 'loss_chunk': 8},
        {'dtype': 'bfloat16', 'remat': 'full', 'attention_backend': 'dense', 'attention_dropout_rate': 0.0},
    ],
)
def test_what_users_change_on_purpose_is_kept(fields: dict[str, Any], tmp_path: Path):
    start = {'data.units': 'tokenizer'} | start_fields(tmp_path)
    config = run_config(tmp_path / 'corpus', **start, **{f'model.{name}': value for name, value in fields.items()})
    assert InitialParams(config).pretrained.model != config.model


def test_an_encoder_of_another_function_is_refused(tmp_path: Path):
    start = fresh_workdir(tmp_path / 'first')
    fields = {'train.start_from': str(start), 'model.activation': 'relu', 'model.norm_epsilon': 0.001}
    said = f"^train.start_from {start} was trained with model.activation 'gelu_tanh', not 'relu', model.norm_epsilon "
    with pytest.raises(InputError, match=said):
        InitialParams(tiny_config(tmp_path / 'second', **fields)).pretrained  # noqa: B018


def test_a_fine_tuning_run_follows_its_start_and_may_not_leave_it(tmp_path: Path):
    checkpoint = write_checkpoint(tmp_path / 'made', 'fill_mask')
    values = tiny_values(tmp_path / 'tuning', **{'train.start_from': str(checkpoint)})
    values['data']['tokenizer'] = None
    values['model'] = dict.fromkeys(values['model'])
    config = fill_config(values).config
    assert InitialParams(config).pretrained.model == config.model
    other = fill_config(json.loads(json.dumps(values)) | {'model': values['model'] | {'activation': 'silu'}}).config
    assert to_dict(other.model) | {'activation': config.model.activation} == to_dict(config.model)
    with pytest.raises(InputError, match=f"model.activation '{config.model.activation}', not 'silu'; use its values"):
        InitialParams(other).pretrained  # noqa: B018
