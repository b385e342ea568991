"""Tests of the config group `noise`, and of the other fields that a denoising run reads."""

import dataclasses
from typing import Any

import pytest

from efficient_attention.config.data import DataConfig
from efficient_attention.config.evaluation import EvalConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.noise import NOISES, READ, NoiseConfig
from efficient_attention.config.pairs import PairsConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError

RUN: dict[str, Any] = {'task': 'text_to_text', 'model': ModelConfig(token_types=0, decoder_layers=2)}
NOISE = RUN | {'noise': NoiseConfig(name='bart')}
PAIRS = RUN | {'pairs': PairsConfig(train='toy:copy:9:1-5')}


@pytest.mark.parametrize(
    'fields, said',
    [
        ({'name': 'electra'}, "noise.name is 'electra'; known: none, span_corruption, bart"),
        ({'density': 0.0}, r'noise.density is 0.0; it must be above 0 and below 1'),
        ({'density': 1.0}, r'noise.density is 1.0; it must be above 0 and below 1'),
        ({'mean_span': 0.5}, 'noise.mean_span is 0.5'),
        ({'permutation': 1.5}, 'noise.permutation is 1.5'),
        ({'infilling': float('nan')}, 'noise.infilling is nan'),
        ({'masking': -0.1}, 'noise.masking is -0.1'),
        ({'deletion': 2}, 'noise.deletion is 2'),
        ({'rotation': 2}, 'noise.rotation is 2'),
    ],
)
def test_fields_out_of_range_are_named(fields: dict, said: str):
    with pytest.raises(InputError, match=f'^{said}'):
        NoiseConfig(**fields)


def test_each_noise_names_the_fields_it_reads():
    names = {field.name for field in dataclasses.fields(NoiseConfig)} - {'name'}
    assert set(READ) == set(NOISES) and set().union(*READ.values()) == names


@pytest.mark.parametrize(
    'fields, said',
    [
        (RUN | {'noise': NoiseConfig(density=0.2)}, "noise.density is 0.2; with noise.name 'none' it must be 0.15"),
        (RUN | {'noise': NoiseConfig('span_corruption', rotation=0.5)}, 'noise.rotation is 0.5; with noise.name'),
        (RUN | {'noise': NoiseConfig('bart', density=0.2)}, "noise.density is 0.2; with noise.name 'bart' it must be"),
        (
            RUN | {'noise': NoiseConfig('bart', infilling=0.0, mean_span=4.0)},
            r'noise.mean_span is 4.0; with noise.infilling 0.0 it must be 3.0',
        ),
        (NOISE | {'pairs': PairsConfig(train='toy:copy:9:1-5')}, "pairs.train is 'toy:copy:9:1-5'; with noise.name"),
        (
            NOISE | {'pairs': PairsConfig(overlong='skip')},
            "pairs.overlong is 'skip'; with noise.name 'bart' it must be",
        ),
        (
            NOISE | {'eval': EvalConfig(split='test')},
            "eval.split is 'test'; with noise.name 'bart' it must be 'held_out'",
        ),
        (NOISE | {'eval': EvalConfig(beams=9)}, "eval.beams is 9; with noise.name 'bart' it must be 4"),
        (PAIRS | {'data': DataConfig(source='text:*.txt')}, "data.source is 'text:.*'; with noise.name 'none' it must"),
        (PAIRS | {'data': DataConfig(prefetch=2)}, "data.prefetch is 2; with noise.name 'none' it must be 4"),
        (RUN, 'pairs.train is empty; the task text_to_text needs datasets of pairs to train on, or noise'),
        (
            NOISE | {'task': 'pretraining', 'model': ModelConfig()},
            "noise.name is 'bart'; the task pretraining does not",
        ),
    ],
)
def test_what_a_run_does_not_read_is_named(fields: dict, said: str):
    with pytest.raises(InputError, match=f'^{said}'):
        RunConfig(**fields)


def test_documents_are_held_out_as_in_other_pretraining():
    run = RunConfig(**NOISE, pairs=PairsConfig(target_length=64, begin='<s>', start='</s>'))
    assert run.has_noise and run.has_evaluation_data
    assert not dataclasses.replace(run, data=DataConfig(held_out=0.0)).has_evaluation_data
    assert not RunConfig(**PAIRS).has_noise
