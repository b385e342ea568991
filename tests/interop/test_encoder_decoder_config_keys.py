"""Tests of encoder-decoder config.json files: import, export, and refusal of unsupported settings."""

import dataclasses
from typing import Any

import pytest

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.config_export import make_config_json
from efficient_attention.interop.config_import import parse_config_json, read_config_json
from efficient_attention.interop.encoder_decoder_config_keys import is_output_scaled
from efficient_attention.models.encoder_decoder_sizes import bart_fields, t5_fields, t5_v1_1_fields, vaswani_fields
from tests.interop.folders import TEXT_TO_TEXT, TEXT_TO_TEXT_NAMES

NONE = HeadConfig()
PARTS = frozenset({'encoder', 'decoder'})
SIZES = {
    't5': t5_fields('small'),
    't5_v1_1': t5_v1_1_fields('xxl'),
    'bart': bart_fields('large'),
    'vaswani': vaswani_fields('base'),
}
T5 = read_config_json(TEXT_TO_TEXT / 't5_1')


def described(name: str, **changes: Any) -> ModelConfig:
    return parse_config_json(read_config_json(TEXT_TO_TEXT / name) | changes).model


def test_sizes_of_a_t5():
    model = described('t5_1')
    assert (model.width, model.layers, model.decoder_layers, model.heads, model.head_width) == (16, 3, 2, 3, 6)
    assert (model.feed_forward_width, model.relative_buckets, model.relative_max_distance) == (28, 8, 10)
    assert (model.norm_kind, model.activation, model.feed_forward_gate, model.scaled_logits) == ('rms', 'relu', 0, 0)
    gated = described('t5_2')
    assert (gated.activation, gated.feed_forward_gate, gated.output_scale) == ('gelu_tanh', True, False)
    assert described('t5_1', num_decoder_layers=None).decoder_layers == 3
    rates = described('t5_1', dropout_rate=0.2)
    assert (rates.dropout_rate, rates.attention_dropout_rate, rates.feed_forward_dropout_rate) == (0.2, 0.2, 0.2)


def test_sizes_of_the_others():
    bart, marian, pegasus = (described(f'{name}_1') for name in ('bart', 'marian', 'pegasus'))
    assert (bart.max_length, bart.position_limit, bart.embedding_norm, bart.norm) == (26, 24, True, 'post')
    assert (bart.layers, bart.decoder_layers, bart.activation, bart.embedding_scale) == (3, 2, 'gelu_erf', False)
    assert (marian.positions, marian.embedding_norm, marian.embedding_scale, marian.norm) == (
        'sinusoidal',
        0,
        1,
        'post',
    )
    assert marian.activation == 'silu'
    assert (pegasus.positions, pegasus.norm, pegasus.activation) == ('sinusoidal', 'pre', 'gelu_tanh')


@pytest.mark.parametrize('name', TEXT_TO_TEXT_NAMES)
def test_every_fixture_is_read_written_and_read_again(name: str):
    values = read_config_json(TEXT_TO_TEXT / name)
    known = parse_config_json(values)
    for extra in ({}, values):
        written = make_config_json(known.model, NONE, PARTS, family=known.family.model_type, extra=extra)
        assert parse_config_json(written) == known and 'efficient_attention' not in written
        assert written['architectures'] == values['architectures'] and written['is_encoder_decoder'] is True


@pytest.mark.parametrize(
    ('size', 'fields', 'family'),
    [
        ('t5', {}, 't5'),
        ('t5', {'feed_forward_gate': True, 'activation': 'gelu_erf'}, 't5'),
        ('t5_v1_1', {}, 't5'),
        ('bart', {}, 'bart'),
        ('vaswani', {}, 'marian'),
        ('vaswani', {'norm': 'pre'}, 'pegasus'),
    ],
)
def test_a_named_size_gets_its_family(size: str, fields: dict[str, Any], family: str):
    model = ModelConfig(**SIZES[size] | fields)
    values = make_config_json(model, NONE, PARTS)
    assert values['model_type'] == family and 'efficient_attention' not in values
    assert parse_config_json(values).model == model


def test_what_training_and_long_inputs_need_goes_under_our_own_key():
    own = {'kernel_init': 'fixed', 'attention_dropout_rate': 0.0, 'final_dropout': False}
    own |= {'attention': 'window(8)', 'decoder_attention': 'causal & window(4)', 'cross_attention': 'favor(32)'}
    model = ModelConfig(**SIZES['t5'] | own)
    values = make_config_json(model, NONE, PARTS)
    assert values['efficient_attention'] == {'model': own} and parse_config_json(values).model == model


@pytest.mark.parametrize(
    ('size', 'fields', 'family', 'message'),
    [
        ('vaswani', {'norm_epsilon': 1e-6}, '', 'no Hugging Face family has model.norm_epsilon 1e-06$'),
        ('t5', {'shared_table': False}, 't5', 'no Hugging Face t5 has model.shared_table False'),
        ('bart', {'tied_output': False}, 'bart', 'no Hugging Face bart has model.tied_output False'),
        ('bart', {'position_offset': 0}, 'bart', 'no Hugging Face bart has model.max_length|model.position_offset 0'),
        ('bart', {}, 'bert', 'no Hugging Face bert has .*a decoder'),
    ],
)
def test_what_cannot_be_said_is_named(size: str, fields: dict[str, Any], family: str, message: str):
    with pytest.raises(InputError, match=message):
        make_config_json(ModelConfig(**SIZES[size] | fields), NONE, PARTS, family=family)


def test_an_encoder_alone_is_no_encoder_decoder():
    with pytest.raises(InputError, match='no Hugging Face t5 has .*no decoder'):
        make_config_json(ModelConfig(), NONE, frozenset({'encoder'}), family='t5')


@pytest.mark.parametrize(
    ('values', 'scaled'),
    [
        ({}, True),
        ({'tie_word_embeddings': False}, False),
        ({'tie_word_embeddings': True, 'scale_decoder_outputs': False}, False),
        ({'tie_word_embeddings': False, 'scale_decoder_outputs': True}, True),
    ],
)
def test_which_outputs_are_scaled(values: dict[str, bool], scaled: bool):
    assert is_output_scaled(values) is scaled


@pytest.mark.parametrize(
    ('name', 'changes', 'message'),
    [
        (
            't5_1',
            {'feed_forward_proj': 'gated-mish'},
            "feed_forward_proj is 'gated-mish'; read here: gelu, .*gated-gelu",
        ),
        ('t5_1', {'architectures': ['T5EncoderModel']}, "'T5EncoderModel'; read here: T5Model, T5ForConditionalGen"),
        ('t5_1', {'is_encoder_decoder': False}, 'is_encoder_decoder is False; read here: True'),
        ('t5_1', {'is_decoder': True}, 'is_decoder is True; read here: False'),
        ('t5_1', {'scale_decoder_outputs': 'no'}, "scale_decoder_outputs is 'no'; it must be true or false"),
        ('t5_1', {'d_kv': 'wide'}, "d_kv is 'wide'; it must be a whole number"),
        ('bart_1', {'architectures': ['BartForCausalLM']}, "'BartForCausalLM'; read here: BartModel, BartForCond"),
        ('bart_1', {'tie_word_embeddings': False}, 'tie_word_embeddings is False; read here: True'),
        ('bart_1', {'decoder_ffn_dim': 20}, 'decoder_ffn_dim is 20; it must be 28, as encoder_ffn_dim is'),
        ('bart_1', {'activation_function': 'mish'}, "activation_function is 'mish'; read here: gelu, "),
        ('bart_1', {'encoder_layerdrop': 0.1}, 'encoder_layerdrop is 0.1; read here: 0.0'),
        ('bart_1', {'decoder_layers': 0}, 'decoder_layers is 0; it must be at least 1'),
        ('marian_1', {'decoder_vocab_size': 60}, 'decoder_vocab_size is 60; it must be 61, as vocab_size is'),
        ('marian_1', {'share_encoder_decoder_embeddings': False}, 'share_encoder_decoder_embeddings is False; read'),
    ],
)
def test_what_we_do_not_follow_is_named(name: str, changes: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        described(name, **changes)


def test_the_old_name_of_t5s_class_is_read():
    assert parse_config_json(T5 | {'architectures': ['T5WithLMHeadModel']}).model == parse_config_json(T5).model


def test_dropout_of_a_t5_is_one_number():
    model = dataclasses.replace(parse_config_json(T5).model, dropout_rate=0.3)
    values = make_config_json(model, NONE, PARTS)
    kept = {'attention_dropout_rate': 0.0, 'feed_forward_dropout_rate': 0.0}
    assert values['dropout_rate'] == 0.3 and values['efficient_attention'] == {'model': kept}
