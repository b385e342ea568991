"""Which attention a row of several pairs serves, and the line that refuses another."""

import dataclasses

import pytest

from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.config.data import DataConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.packing_checks import check_packing, goes_by_place
from efficient_attention.config.pairs import PairsConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError

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
    assert goes_by_place(parse_mechanism('lsh(8, 2)')) and not goes_by_place(parse_mechanism('causal'))
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
    """Documents of a text may take one another's places in clusters; a pair's result may not depend on its row."""
    model = dataclasses.replace(MODEL, attention='routing(4, 32, causal=True)', decoder_layers=0)
    RunConfig(task='language_modelling', model=model, data=DataConfig(cut_at_documents=True))
    RunConfig(model=dataclasses.replace(model, attention='routing(4, 32)'))
    assert goes_by_place(parse_mechanism('routing(4, 32)'))
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
