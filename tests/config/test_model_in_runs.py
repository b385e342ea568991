"""Tests of the conditions that a run sets for its model: drawn keys, memory, packed rows, recurrent layers."""

import dataclasses
import re
from typing import Any

import pytest

from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.config.data import DataConfig
from efficient_attention.config.dict_conversion import from_dict
from efficient_attention.config.layer import LayerConfig
from efficient_attention.config.model import (
    ModelConfig,
    check_can_attend_to_memory,
    check_compression,
    check_compression_rate,
    check_memory,
    check_packing,
    check_sampled_attention,
    is_position_dependent,
)
from efficient_attention.config.pairs import PairsConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError

DRAWS = {'cross_attention': 'hard(full, sampled=True)', 'decoder_layers': 1}


def test_a_plain_stack_and_the_losses_of_all_targets_serve():
    model = ModelConfig(**DRAWS, reinforce_weight=0.5)
    check_sampled_attention(model)
    assert model.decoder.reinforce_weight == 0.5 and model.encoder.cross_attention == 'full'
    check_sampled_attention(ModelConfig(loss_chunk=8))


@pytest.mark.parametrize(
    'fields, line',
    [
        (
            {'loss_chunk': 8},
            "model.loss_chunk is 8; it must be 0 with model.cross_attention 'hard(full, sampled=True)'",
        ),
        (
            {'stack': 'reversible', 'norm': 'pre'},
            "model.stack is 'reversible'; it must be 'plain' with model.cross_attention",
        ),
    ],
)
def test_what_does_not_serve_is_named(fields: dict, line: str):
    with pytest.raises(InputError, match=re.escape(line)):
        check_sampled_attention(ModelConfig(**DRAWS, **fields))


def test_draws_in_self_attention_are_refused():
    line = "model.attention 'hard(causal, sampled=True)' samples keys, which only model.cross_attention"
    with pytest.raises(InputError, match=re.escape(line)):
        LayerConfig(attention='hard(causal, sampled=True)')


def test_a_weight_without_draws_is_refused():
    with pytest.raises(
        InputError, match='model.reinforce_weight is 0.5; it must be 1.0 without a model.cross_attention'
    ):
        LayerConfig(reinforce_weight=0.5)


MEMORY = {'positions': 'none', 'rotary': True, 'memory_length': 8, 'attention': 'causal'}
XL = {'positions': 'none', 'relative': 'transformer_xl'}
FAVOR = {'attention': 'favor(8, causal=True)', 'attention_dropout_rate': 0.0}


@pytest.mark.parametrize('attention', ['causal', 'causal & window(3)', 'causal & strided(4)', 'causal & window(3, 2)'])
def test_what_goes_by_distance_keeps_memory(attention: str):
    check_memory(ModelConfig(**MEMORY | {'attention': attention}))
    check_can_attend_to_memory(ModelConfig(**MEMORY | {'attention': attention, 'memory_length': 0}))


@pytest.mark.parametrize(
    'fields, message',
    [
        (FAVOR, 'cannot use memory: use causal'),
        ({'attention': 'sparse_fixed(8, 2)'}, 'cannot use memory: use causal'),
        ({'stack': 'reversible', 'norm': 'pre'}, r'reversible stack \(model\.stack\) cannot use memory'),
        ({'positions': 'learned'}, 'positions must be relative'),
    ],
)
def test_what_keeps_no_memory_is_named(fields: dict, message: str):
    with pytest.raises(InputError, match=rf'^model\.memory_length is 8; .*{message}'):
        check_memory(ModelConfig(**MEMORY | fields))
    with pytest.raises(InputError, match=message):
        check_can_attend_to_memory(ModelConfig(**MEMORY | fields | {'memory_length': 0}))


@pytest.mark.parametrize('attention', ['causal', 'full', 'causal & window(5)'])
def test_distances_of_transformer_xl_need_one_run_of_keys(attention: str):
    check_memory(ModelConfig(**XL, attention=attention))


@pytest.mark.parametrize('attention', ['causal & strided(4)', 'causal & window(3, 2)', 'causal | window(9)'])
def test_keys_with_gaps_have_no_distances_of_transformer_xl(attention: str):
    with pytest.raises(InputError, match=r"^model\.relative is 'transformer_xl'; .* must be causal or"):
        check_memory(ModelConfig(**XL, attention=attention))


SLOTS = MEMORY | {'compression': 'mean', 'compressed_length': 4, 'compression_rate': 3}


def test_compression_needs_a_memory_that_tokens_leave():
    check_memory(ModelConfig(**SLOTS))
    # An evaluation may set both lengths to 0.
    check_memory(ModelConfig(**SLOTS | {'memory_length': 0, 'compressed_length': 0}))
    with pytest.raises(InputError, match='^model.compressed_length is 4; it must be 0 without model.memory_length'):
        check_memory(ModelConfig(**SLOTS | {'memory_length': 0}))
    with pytest.raises(InputError, match="^model.compression is 'mean'; it must be 'none' with model.cell 'gru'"):
        check_memory(ModelConfig(**SLOTS | {'memory_length': 1, 'rotary': False, 'cell': 'gru'}))


def test_segments_divide_by_the_rate_of_compression():
    lengths = {'data.length': 12, 'eval.context': 7}
    with pytest.raises(InputError, match='^eval.context is 7; it must be a multiple of model.compression_rate 3'):
        check_compression(ModelConfig(**SLOTS), lengths)
    check_compression(ModelConfig(**SLOTS), {'data.length': 12})
    check_compression(ModelConfig(**MEMORY), lengths)
    without = ModelConfig(**SLOTS | {'compressed_length': 0})
    check_compression_rate(without, lengths)
    with pytest.raises(InputError, match="^model.compressed_length is 0; it must be above 0 with model.compression 'm"):
        check_compression(without, {'data.length': 12})


MODEL = ModelConfig(token_types=0, layers=2, decoder_layers=2, attention_dropout_rate=0.0)


@pytest.mark.parametrize('text', ['full', 'window(4)', 'favor(8)', 'linear()', 'sparse_strided(4)'])
def test_attention_by_distance_or_by_sums_of_segments_serves(text: str):
    check_packing(dataclasses.replace(MODEL, attention=text, decoder_attention='causal;favor(8, causal=True)'))


@pytest.mark.parametrize('text', ['bigbird(4)', 'longformer(4)'])
def test_attention_by_the_place_in_the_row_is_refused(text: str):
    model = dataclasses.replace(MODEL, attention=f'full; {text}')
    pairs = PairsConfig(train='toy:copy:9:1-5', packed=True)
    RunConfig(task='text_to_text', pairs=pairs, model=MODEL)
    with pytest.raises(InputError) as refused:
        RunConfig(task='text_to_text', pairs=pairs, model=model)
    assert str(refused.value).startswith(f"pairs.packed is True; model.attention '{text}' needs a row for each pair: ")
    decoder = dataclasses.replace(MODEL, decoder_attention='sparse_fixed(4, 2)')
    assert is_position_dependent(parse_mechanism('lsh(8, 2)')) and not is_position_dependent(parse_mechanism('causal'))
    with pytest.raises(InputError, match=r"model.decoder_attention 'sparse_fixed\(4, 2\)' needs a row for each pair"):
        check_packing(decoder)


@pytest.mark.parametrize('text', ['sinkhorn(16, 8, causal=True)', 'nystrom(4)', 'linformer(3, 128)'])
def test_what_mixes_the_tokens_of_a_row_is_refused_where_rows_hold_several_texts(text: str):
    model = dataclasses.replace(MODEL, attention=text, decoder_layers=0)
    RunConfig(task='language_modelling', model=model)
    with pytest.raises(InputError, match=r'^data.cut_at_documents is True; model.attention .* mixes the tokens of a'):
        RunConfig(task='language_modelling', model=model, data=DataConfig(cut_at_documents=True))
    with pytest.raises(InputError, match="^data.pairs is 'none', which packs documents into full rows"):
        RunConfig(model=model)
    packed = PairsConfig(train='toy:copy:9:1-5', packed=True)
    with pytest.raises(InputError, match='^pairs.packed is True; model.attention .* needs a row for each pair'):
        RunConfig(task='text_to_text', pairs=packed, model=dataclasses.replace(model, decoder_layers=2))


def test_clusters_of_a_row_serve_packed_documents_and_not_packed_pairs():
    """Clusters mix all documents of a row. A language model allows that; a packed pair must not depend on its row."""
    model = dataclasses.replace(MODEL, attention='routing(4, 32, causal=True)', decoder_layers=0)
    RunConfig(task='language_modelling', model=model, data=DataConfig(cut_at_documents=True))
    RunConfig(model=dataclasses.replace(model, attention='routing(4, 32)'))
    assert is_position_dependent(parse_mechanism('routing(4, 32)'))
    packed = PairsConfig(train='toy:copy:9:1-5', packed=True)
    with pytest.raises(InputError, match='^pairs.packed is True; model.attention .* needs a row for each pair'):
        RunConfig(task='text_to_text', pairs=packed, model=dataclasses.replace(model, decoder_layers=2))


def test_first_states_of_a_source_are_refused_and_its_attention_is_served():
    reading = dataclasses.replace(MODEL, cell='gru', source_reading='before', heads=1)
    check_packing(reading)
    with pytest.raises(InputError, match="^model.initial_state is 'copy'; it must be 'zeros' with pairs.packed: a row"):
        check_packing(dataclasses.replace(reading, initial_state='copy'))


@pytest.mark.parametrize(
    'fields, line',
    [
        (
            {'decoder_attention': "linear('cos', 8, causal=True)"},
            'target_length 128 is beyond the 8 tokens that model.decoder_attention linear',
        ),
        (
            {'cross_attention': 'linformer(3, 8)'},
            'data.length 128 is beyond the 8 tokens that model.cross_attention linformer',
        ),
        (
            {'decoder_attention': 'sinkhorn(4, 2, causal=True)'},
            'target_length 128 is beyond the 8 tokens that model.decoder_attention sinkhorn',
        ),
        ({'attention': 'linformer(3, 8)'}, 'data.length 128 is beyond the 8 tokens that model.attention linformer'),
    ],
    ids=str,
)
def test_each_stack_has_a_length_of_its_own(fields: dict, line: str):
    model = dataclasses.replace(MODEL, **fields)
    with pytest.raises(InputError, match=line):
        RunConfig(task='text_to_text', model=model, pairs=PairsConfig(train='toy:copy:9:2-5', target_length=128))


def test_cross_attention_by_positions_bounds_targets_too():
    model, pairs = dataclasses.replace(MODEL, cross_attention="linear('cos', 200)"), PairsConfig(train='toy:copy:9:2-5')
    RunConfig(task='text_to_text', model=model, pairs=dataclasses.replace(pairs, target_length=200))
    line = 'target_length 201 is beyond the 200 tokens that model.cross_attention linear'
    with pytest.raises(InputError, match=line):
        RunConfig(task='text_to_text', model=model, pairs=dataclasses.replace(pairs, target_length=201))


LANGUAGE: dict[str, Any] = {'task': 'language_modelling'}
PAIRS: dict[str, Any] = {'task': 'text_to_text', 'pairs': {'train': 'toy:copy:9:1-5'}}


def run_of(run: dict[str, Any], **model: Any) -> RunConfig:
    groups = {name: value for name, value in model.items() if isinstance(value, dict)}
    fields = {name: value for name, value in model.items() if name not in groups}
    defaults = {'cell': 'gru', 'token_types': 0, 'attention': 'causal'}
    defaults |= {'decoder_layers': 2, 'attention': 'full'} if run is PAIRS else {}
    return from_dict(run | groups | {'model': defaults | fields}, RunConfig)


def test_recurrent_layers_serve_every_task():
    run_of(LANGUAGE)
    run_of(LANGUAGE, bidirectional=True, directions_apart=True)
    run_of({}, attention='full', bidirectional=True)
    run_of(PAIRS, heads=4, attention_dropout_rate=0.0, bidirectional=True, cross_attention='window(4)')


@pytest.mark.parametrize(
    'run, fields, said',
    [
        (LANGUAGE, {'heads': 4}, "model.heads is 4; it must be 2 with model.cell 'gru', whose layers do not read it"),
        (LANGUAGE, {'attention_dropout_rate': 0.0}, 'model.attention_dropout_rate is 0.0; it must be 0.1 with model.c'),
        (
            LANGUAGE,
            {'attention': 'causal & window(4)'},
            "model.attention is 'causal & window.4.'; it must be 'full' or",
        ),
        (
            LANGUAGE,
            {'head_width': 16},
            'model.head_width is 16; it must be 0, or model.width / model.heads, with model.',
        ),
        (
            LANGUAGE,
            {'attention_backend': 'dense'},
            "model.attention_backend is 'dense'; it must be 'auto' with model.c",
        ),
        (
            PAIRS,
            {'source_reading': 'state', 'initial_state': 'map', 'layers': 2, 'cross_attention': 'sparsemax(full)'},
            r"model.cross_attention is 'sparsemax\(full\)'; it must be 'full' with model.cell",
        ),
        (LANGUAGE, {'rotary': True}, 'model.rotary is True; it must be False with model.cell'),
        (LANGUAGE, {'relative': 'alibi'}, "model.relative is 'alibi'; it must be 'none' with model.cell"),
        (LANGUAGE, {'bidirectional': True}, 'model.bidirectional is True; it must be False in a language model'),
        (
            LANGUAGE,
            {'directions_apart': True},
            'model.directions_apart is True; it must be False without model.bidirect',
        ),
        (
            PAIRS,
            {'directions_apart': True},
            'model.directions_apart is True; the task text_to_text does not read it, so',
        ),
        (
            LANGUAGE,
            {'memory_length': 4, 'positions': 'none', 'rotary': False, 'data': {'batches': 'streams'}},
            "model.memory_length is 4; it must be 0, or 1 with model.cell 'gru': the state, which summarises",
        ),
        (
            LANGUAGE,
            {'memory_length': 1, 'bidirectional': True, 'directions_apart': True, 'positions': 'none'}
            | {'data': {'batches': 'streams'}},
            'model.memory_length is 1; it must be 0 with model.directions_apart',
        ),
        (
            LANGUAGE,
            {'memory_length': 1, 'same_length': True, 'positions': 'none', 'data': {'batches': 'streams'}},
            "model.same_length is True; it must be False with model.cell 'gru', whose state has no single tokens",
        ),
        (LANGUAGE, {'mesh': {'sequence': 2}}, "mesh.sequence is 2; layers of model.cell 'gru' read rows position by"),
        (
            PAIRS,
            {'decoder_attention': 'causal & window(4)'},
            'model.decoder_attention is .causal & window.4..; it must',
        ),
    ],
)
def test_what_they_do_not_do_is_refused(run: dict, fields: dict, said: str):
    with pytest.raises(InputError, match=f'^{said}'):
        run_of(run, **fields)
