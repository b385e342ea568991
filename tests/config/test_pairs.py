"""Tests of the config group `pairs`, and of its agreement with the other groups of a text-to-text run."""

import dataclasses

import pytest

from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.pairs import PairsConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.config.train import TrainConfig
from efficient_attention.errors import InputError

MODEL = ModelConfig(token_types=0, decoder_layers=2)
APART = dataclasses.replace(MODEL, shared_table=False)
TWO = PairsConfig(train='toy:copy:9:1-5', target_tokenizer='train:bpe', target_vocab_size=5000)
RUN = {'task': 'text_to_text', 'pairs': PairsConfig(train='toy:copy:9:1-5'), 'model': MODEL}


@pytest.mark.parametrize(
    'fields, said',
    [
        ({'overlong': 'wrap'}, "pairs.overlong is 'wrap'; known: truncate, skip, error"),
        ({'target_length': 1}, 'pairs.target_length is 1'),
        ({'mixing_limit': -1}, r'pairs.mixing_limit is -1; it must be at least 0'),
        ({'mixing_temperature': 0.5}, 'pairs.mixing_temperature is 0.5'),
        ({'target_tokenizer': 'train:bpe', 'target_vocab_size': -1}, 'pairs.target_vocab_size is -1'),
        ({'target_vocab_size': 9}, 'pairs.target_vocab_size is 9; without pairs.target_tokenizer it must be 0'),
        ({'buckets': (8, 8)}, r'pairs.buckets is \(8, 8\)'),
    ],
)
def test_fields_out_of_range_are_named(fields: dict, said: str):
    with pytest.raises(InputError, match=f'^{said}'):
        PairsConfig(**fields)


def test_a_run_of_text_to_text():
    run = RunConfig(**RUN)
    assert not run.has_evaluation_data
    held_out = dataclasses.replace(run.pairs, held_out='toy:copy:9:1-5')
    assert dataclasses.replace(run, pairs=held_out).has_evaluation_data


@pytest.mark.parametrize(
    'fields, said',
    [
        ({'pairs': PairsConfig()}, 'pairs.train is empty'),
        ({'model': dataclasses.replace(MODEL, decoder_layers=0)}, 'model.decoder_layers is 0; the task text_to_text'),
        ({'pairs': dataclasses.replace(RUN['pairs'], target_length=600)}, 'pairs.target_length 600 is beyond'),
        (
            {'mesh': MeshConfig(sequence=2), 'model': dataclasses.replace(MODEL, cross_attention='window(4)')},
            "mesh.sequence is 2; model.cross_attention 'window\\(4\\)' does not work with",
        ),
        ({'mesh': MeshConfig(sequence=3)}, 'mesh.sequence is 3; data.length 128 is not a multiple of it'),
        (
            {'model': dataclasses.replace(MODEL, decoder_attention='full')},
            "^model.decoder_attention 'full' is not causal; write 'causal",
        ),
        (
            {'model': dataclasses.replace(MODEL, decoder_attention='causal;causal;causal')},
            "^model.decoder_attention 'causal;causal;causal' does not fit a decoder: ",
        ),
        (
            {'model': dataclasses.replace(MODEL, adaptive_cutoffs=(9,)), 'train': TrainConfig(z_loss=1e-4)},
            '^train.z_loss must be 0 with model.adaptive_cutoffs',
        ),
        (
            {'pairs': TWO},
            "^model.shared_table is True; it must be False with pairs.target_tokenizer 'train:bpe': the same id",
        ),
        (
            {'pairs': TWO, 'model': APART},
            '^model.vocab_size 4096 is below pairs.target_vocab_size 5000, the pieces of pairs.target_tokenizer$',
        ),
        (
            {
                'pairs': dataclasses.replace(TWO, target_vocab_size=0),
                'model': dataclasses.replace(APART, target_vocab_size=9),
            },
            '^model.target_vocab_size 9 is below data.vocab_size 4096',
        ),
        (
            {'model': dataclasses.replace(APART, target_vocab_size=9)},
            '^model.target_vocab_size is 9; it must be 0 without pairs.target_tokenizer$',
        ),
        ({'task': 'pretraining'}, 'pairs.train is .*; the task pretraining does not read it'),
    ],
)
def test_what_does_not_fit_together_is_named(fields: dict, said: str):
    with pytest.raises(InputError, match=said):
        RunConfig(**(RUN | fields))


def test_two_tokenizers_are_two_tables():
    model = dataclasses.replace(APART, target_vocab_size=5000)
    run = RunConfig(**RUN | {'pairs': TWO, 'model': model})
    assert (run.model.encoder.vocab_size, run.model.decoder.vocab_size) == (4096, 5000)
    assert APART.decoder.vocab_size == 4096
    assert run.model.encoder.target_vocab_size == run.model.decoder.target_vocab_size == 0
    RunConfig(**RUN | {'pairs': dataclasses.replace(TWO, target_tokenizer='some.model'), 'model': APART})


def test_the_configs_of_the_two_stacks():
    model = ModelConfig(token_types=0, layers=3, decoder_layers=2, attention='window(4)', decoder_attention='causal')
    assert (model.encoder.layers, model.encoder.attention) == (3, 'window(4)')
    assert (model.decoder.layers, model.decoder.attention) == (2, 'causal')
    assert model.encoder.decoder_layers == model.decoder.decoder_layers == 0
    with pytest.raises(InputError, match=r'^model.decoder_layers is 0; an encoder-decoder has at least 1$'):
        _ = model.decoder.decoder


@pytest.mark.parametrize(
    'fields, is_mixed', [({}, False), ({'mixing_limit': 9}, True), ({'mixing_temperature': 2.0}, True)]
)
def test_a_limit_or_a_temperature_makes_a_mixture(fields: dict, is_mixed: bool):
    assert PairsConfig(**fields).is_weighted_mixture is is_mixed
