"""Tests of the fields of a layer: derived values, and one clear line for each unsuitable value."""

import dataclasses
import re
from typing import Any

import pytest

from efficient_attention.config import layer
from efficient_attention.config.dict_conversion import to_dict
from efficient_attention.config.layer import LayerConfig
from efficient_attention.config.mesh import MeshConfig, check_sequence_parallel
from efficient_attention.config.model import ModelConfig, check_memory
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'dropout_rate': 1.0}, r'model.dropout_rate is 1.0; it must be in \[0, 1\)'),
        ({'norm': 'sandwich'}, "model.norm is 'sandwich'; known: post, pre"),
        ({'dtype': 'float16'}, "model.dtype is 'float16'; known"),
        ({'norm_kind': 'batch'}, "model.norm_kind is 'batch'; known: layer, rms"),
        ({'kernel_init': 'zeros'}, "model.kernel_init is 'zeros'; known: fixed, fan_in"),
    ],
)
def test_bad_fields_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        LayerConfig(**fields)


def test_a_field_of_a_sub_layer_is_refused_without_it():
    names = {field.name for field in dataclasses.fields(LayerConfig) if field.name.startswith('feed_forward_')}
    assert names == {'feed_forward_width', *layer.OF_FEED_FORWARD}


def test_texts_of_mechanisms_are_parsed_once_and_are_no_fields():
    config = LayerConfig(attention='full;causal', cross_attention='window(4)')
    assert config.mechanisms is config.mechanisms and len(config.mechanisms) == 2
    assert config.cross_mechanism is config.cross_mechanism
    assert set(to_dict(config)) == {field.name for field in dataclasses.fields(LayerConfig)}
    other = dataclasses.replace(config, attention='causal')
    assert other != config and other.mechanisms == config.mechanisms[1:]


def test_heads_share_the_width_unless_theirs_is_given():
    assert LayerConfig(width=96, heads=4).head_width == 24
    assert LayerConfig(width=10, heads=4, head_width=3).head_width == 3


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'width': 100, 'heads': 3}, 'model.heads is 3; it must be a divisor of model.width 100'),
        ({'heads': 0}, 'model.heads is 0'),
        ({'attention_dropout_rate': float('nan')}, 'model.attention_dropout_rate is nan'),
        ({'attention': 'windw(3)'}, "unknown name 'windw'"),
        ({'attention_backend': 'cuda'}, "model.attention_backend is 'cuda'; known: auto, reference"),
        ({'width': 6, 'heads': 2, 'rotary': True}, 'model.head_width is 3; it must be even'),
        (
            {'attention': 'lsh(64, 4)'},
            r"model.attention 'lsh\(64, 4\)': LSH needs model.shared_qk=True, causal=True among its arguments",
        ),
        (
            {'attention': 'favor(64, causal=True)'},
            r"model.attention 'favor\(64, causal=True\)': FAVOR needs model.attention_dropout_rate=0.0$",
        ),
        ({'attention': 'per_head(full, causal, full)'}, '2 heads do not divide over 3 patterns'),
        ({'attention': 'causal; windw(3)'}, "unknown name 'windw'"),
        (
            {'attention': 'causal; entmax(causal)', 'attention_backend': 'dense'},
            "model.attention_backend 'dense' works only with softmax attention; for model.attention 'causal; entmax",
        ),
        (
            {'cross_attention': 'local_p(3)', 'attention_backend': 'jax_nn'},
            "model.attention_backend 'jax_nn' works only with softmax attention; for model.cross_attention 'local_p",
        ),
        ({'global_tokens': -1}, 'model.global_tokens is -1'),
    ],
)
def test_bad_fields_of_attention_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        LayerConfig(**fields)


@pytest.mark.parametrize('text', ['local_p(4)', "local_p(4, 'entmax')"])
def test_local_p_in_self_attention_is_refused(text: str):
    line = 'predicts positions in another sequence: use it as model.cross_attention, and window(w) here'
    with pytest.raises(InputError, match=re.escape(f'model.attention {text!r} {line}')):
        LayerConfig(attention=text)


@pytest.mark.parametrize(
    'text',
    ['full', 'window(3)', 'window(2, 3)', 'per_head(full, window(1))', 'favor(8)', 'linear', 'local_p(3)']
    + ['sparsemax(window(3))', 'entmax(full)', 'hard'],
)
def test_cross_attention_that_reads_another_row(text: str):
    config = LayerConfig(cross_attention=text, attention_dropout_rate=0.0)
    assert config.cross_mechanism.can_cross_attend


@pytest.mark.parametrize(
    'text',
    ['lsh(8)', 'block(4)', 'global_tokens(2)', 'longformer(2, 1)', 'bigbird(4, 1)', 'sparse_fixed(8, 2)', 'prefix(3)']
    + ['causal', 'causal & window(3)', 'favor(8, causal=True)', 'linear(causal=True)', 'window(2) | global_tokens(1)']
    + [
        'sparsemax(causal)',
        'entmax(block(4))',
        'random_tiles(1, 4)',
        'listed_tiles(4, 1, 0)',
        'per_head(full, block(2))',
    ],
)
def test_cross_attention_that_needs_one_row_is_refused(text: str):
    with pytest.raises(InputError) as error:
        LayerConfig(cross_attention=text, attention_dropout_rate=0.0)
    line = (
        f'model.cross_attention {text!r} needs queries and keys in one row; use full, window(w), sparsemax(full), favor'
    )
    assert str(error.value).startswith(line)


@pytest.mark.parametrize(
    'text, message',
    [
        ('favor(8)', r"model.cross_attention 'favor\(8\)' needs model.attention_dropout_rate=0.0"),
        ('per_head(full, window(1), full)', '2 heads do not divide over 3 patterns'),
        ('full; window(2)', "'full; window\\(2\\)' cannot be read"),
    ],
)
def test_cross_attention_that_does_not_fit_is_refused(text: str, message: str):
    with pytest.raises(InputError, match=message):
        LayerConfig(cross_attention=text)


FAVOR = {'attention': 'full; favor(64)', 'attention_dropout_rate': 0.0}


def test_only_untied_positions_scale_the_query():
    assert LayerConfig(relative='t5').query_scale == LayerConfig().query_scale == 1
    assert LayerConfig(relative='tupe').query_scale ** 2 == pytest.approx(0.5)


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'relative': 'rope'}, "model.relative is 'rope'; known: none, alibi, t5, tupe, tupe_r"),
        ({'relative': 't5', 'global_tokens': 2}, "model.relative is 't5'; it must be 'none' with model.global_tokens"),
        (FAVOR | {'relative': 'alibi'}, r"model.relative is 'alibi'; attention 'full; favor\(64\)' takes no bias"),
        ({'relative_buckets': 16}, "relative_buckets is 16; it must be 32 with model.relative 'none', which does not"),
        ({'relative': 'alibi', 'relative_max_distance': 64}, 'model.relative_max_distance is 64; it must be 128 with'),
        ({'relative': 't5', 'relative_cls_reset': False}, 'model.relative_cls_reset is False; it must be True with'),
        ({'relative': 't5', 'relative_buckets': 7}, 'model.relative_buckets is 7; it must be even and at least 4'),
        ({'relative': 't5', 'relative_max_distance': 16}, 'model.relative_max_distance is 16; it must be above half'),
    ],
)
def test_bad_fields_of_relative_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        LayerConfig(**fields)


ADDITIVE = {'score': 'additive'}


@pytest.mark.parametrize(
    'fields, line',
    [
        ({'score': 'cosine'}, "model.score is 'cosine'; known: dot, general, additive, location"),
        ({'score': 'general', 'rotary': True}, "model.rotary is True; it must be False with model.score 'general'"),
        (ADDITIVE | {'global_tokens': 2}, "model.global_tokens is 2; it must be 0 with model.score 'additive'"),
        (ADDITIVE | {'shared_qk': True}, "model.shared_qk is True; it must be False with model.score 'additive'"),
        (ADDITIVE | {'scaled_logits': False}, 'model.scaled_logits is False; it must be True with model.score'),
        ({'score': 'location', 'relative': 'tupe'}, "model.relative is 'tupe'; it must be one of none, alibi, t5 with"),
        (
            ADDITIVE | {'attention_backend': 'blocked'},
            "model.attention_backend is 'blocked'; it must be one of auto",
        ),
        (
            ADDITIVE | {'attention': 'linear', 'attention_dropout_rate': 0.0},
            "model.attention is 'linear'; it must be a distribution over the logits of a pattern with model.score",
        ),
        (
            ADDITIVE | {'cross_attention': 'favor(8)', 'attention_dropout_rate': 0.0},
            r"model.cross_attention is 'favor\(8\)'; it must be a distribution over the logits of a pattern with",
        ),
        ({'location_length': 64}, "model.location_length is 64; it must be 512 without model.score 'location'"),
        ({'score': 'location', 'location_length': 0}, 'model.location_length is 0; it must be at least 1'),
    ],
)
def test_bad_fields_of_score_are_named(fields: dict, line: str):
    with pytest.raises(InputError, match=line):
        LayerConfig(**fields)


def test_rows_beyond_the_vectors_of_positions_are_refused():
    model = ModelConfig(score='location', location_length=64, positions='none', token_types=0)
    with pytest.raises(InputError, match='data.length 128 is beyond the position table, model.location_length 64'):
        RunConfig(model=model, task='language_modelling')
    with pytest.raises(InputError, match="model.memory_length is 8; model.score 'location' has vectors for positions"):
        check_memory(ModelConfig(score='location', memory_length=8, attention='causal', positions='none'))


def test_rows_that_are_split_over_devices_have_no_additive_scores():
    with pytest.raises(
        InputError, match="mesh.sequence is 2; model.score 'additive' does not work with sequence parallel"
    ):
        check_sequence_parallel(MeshConfig(sequence=2), ModelConfig(score='additive'), {})


def test_the_feed_forward_layer_is_four_times_as_wide():
    assert LayerConfig(width=96, heads=4).feed_forward_width == 384


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'activation': 'gelu'}, "model.activation is 'gelu'; known: gelu_tanh, gelu_erf"),
        ({'feed_forward_chunk': -1}, 'model.feed_forward_chunk is -1'),
        ({'feed_forward_dropout_rate': 1.0}, 'model.feed_forward_dropout_rate is 1.0'),
        (
            {'feed_forward_chunk': 4, 'feed_forward_dropout_rate': 0.1},
            'model.feed_forward_chunk is 4; it must be 0 with model.feed_forward_dropout_rate',
        ),
    ],
)
def test_bad_fields_of_feed_forward_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        LayerConfig(**fields)


@pytest.mark.parametrize(
    'fields, said',
    [
        ({'cell': 'elman'}, "cell is 'elman'; known: none, tanh, gru, lstm, sru1, sru2"),
        ({'cell': 'gru', 'state_dropout_rate': 1.0}, r'state_dropout_rate is 1.0; it must be at least 0 and below 1'),
        ({'cell': 'sru2', 'state_dropout_rate': 0.1}, 'state_dropout_rate is 0.1; it must be 0 with model.cell'),
        ({'cell': 'gru', 'recurrent_chunk': -1}, 'recurrent_chunk is -1'),
        ({'cell': 'gru', 'bidirectional': True, 'width': 9, 'heads': 3}, 'width is 9; it must be even for model.bidir'),
        ({'bidirectional': True}, 'bidirectional is True; it must be False without model.cell'),
        ({'recurrent_chunk': 8}, 'recurrent_chunk is 8; it must be 0 without model.cell'),
        ({'feed_forward': False, 'feed_forward_width': 8}, 'feed_forward_width is 8; it must be 512 with model.feed_f'),
        ({'feed_forward': False, 'feed_forward_gate': True}, 'feed_forward_gate is True; it must be False with model.'),
    ],
)
def test_fields_out_of_range_are_named(fields: dict, said: str):
    with pytest.raises(InputError, match=f'^model.{said}'):
        LayerConfig(**fields)


def test_both_directions_share_the_width_and_a_decoder_has_one():
    model = ModelConfig(cell='lstm', bidirectional=True, decoder_layers=2, token_types=0)
    assert (model.recurrent_state_width, model.encoder.recurrent_state_width, model.decoder.recurrent_state_width) == (
        64,
        64,
        128,
    )


PAIR: dict[str, Any] = {'cell': 'gru', 'token_types': 0, 'layers': 2, 'decoder_layers': 2}


@pytest.mark.parametrize(
    'fields, said',
    [
        ({'source_reading': 'top'}, "source_reading is 'top'; known: layers, state, before, after"),
        ({'initial_state': 'ones'}, "initial_state is 'ones'; known: zeros, copy, map, map_backward"),
        ({'readout': 'max'}, "readout is 'max'; known: none, maxout"),
        ({'source_reading': 'after', 'cell': 'none'}, "source_reading is 'after'; it must be 'layers' without mo"),
        ({'initial_state': 'copy', 'cell': 'none'}, "initial_state is 'copy'; it must be 'zeros' without model.cell"),
        ({'input_feeding': True, 'source_reading': 'before'}, 'input_feeding is True; it must be False with mode'),
        ({'readout': 'maxout', 'source_reading': 'after'}, "readout is 'maxout'; it must be 'none' with model.so"),
        ({'source_reading': 'state'}, "initial_state is 'zeros'; it must be copy, map or map_backward with model"),
        ({'initial_state': 'copy', 'decoder_layers': 1}, 'decoder_layers is 1; it must be 2, model.layers, with'),
        ({'initial_state': 'copy', 'bidirectional': True}, "initial_state is 'copy'; it must be zeros, map or ma"),
        ({'initial_state': 'map_backward'}, "initial_state is 'map_backward'; it must be zeros, copy or map with"),
        ({'source_reading': 'before', 'state_width': 64}, 'state_width is 64; it must be 0 or model.width with m'),
        ({'source_reading': 'before', 'recurrent_chunk': 8}, 'recurrent_chunk is 8; it must be 0 where the decod'),
        (
            {'source_reading': 'after', 'stack': 'reversible', 'norm': 'pre'},
            "stack is 'reversible'; it must be 'plain' with model.source_reading or model.initial_state",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(fields: dict, said: str):
    with pytest.raises(InputError, match=f'^model.{said}'):
        ModelConfig(**PAIR | fields)


def test_the_papers_choices_are_taken():
    bahdanau = {'source_reading': 'before', 'bidirectional': True, 'initial_state': 'map_backward', 'readout': 'maxout'}
    assert ModelConfig(**PAIR | bahdanau).decoder.has_sequential_decoder
    luong = {'source_reading': 'after', 'input_feeding': True, 'initial_state': 'copy'}
    assert ModelConfig(**PAIR | luong).decoder.has_sequential_decoder
    assert not ModelConfig(**PAIR | luong | {'input_feeding': False}).decoder.has_sequential_decoder


LEARNED = {'compression': 'convolution', 'compressed_length': 8, 'reconstruction_weight': 1.0}


@pytest.mark.parametrize('fields', [{}, LEARNED, {'compression': 'max', 'compressed_length': 8, 'compression_rate': 1}])
def test_what_fits_is_taken(fields: dict):
    config = LayerConfig(**fields)
    assert {name: getattr(config, name) for name in fields} == fields


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'compression': 'conv'}, "model.compression is 'conv'; known: none, convolution, mean, max"),
        ({'compressed_length': 8}, 'model.compressed_length is 8; it must be 0 without model.compression'),
        ({'compression_rate': 2}, 'model.compression_rate is 2; it must be 4 without model.compression'),
        (
            {'reconstruction_weight': 1.0},
            'model.reconstruction_weight is 1.0; it must be 0.0 without model.compression',
        ),
        (LEARNED | {'compressed_length': -1}, r'model.compressed_length is -1; it must be at least 0'),
        (LEARNED | {'compression_rate': 0}, r'model.compression_rate is 0; it must be at least 1'),
        (LEARNED | {'reconstruction_weight': float('nan')}, 'model.reconstruction_weight is nan'),
        (LEARNED | {'reconstruction_weight': 0.0}, "weight is 0.0; it must be above 0 with model.compression 'convol"),
        (LEARNED | {'compression': 'mean'}, "weight is 1.0; it must be 0 with model.compression 'mean', which has no"),
    ],
)
def test_what_does_not_fit_is_one_line(fields: dict, message: str):
    with pytest.raises(InputError, match=message) as caught:
        LayerConfig(**fields)
    assert '\n' not in str(caught.value)
