"""Tests of the fields of a head, and of the agreement between data rows, encoder and head."""

import dataclasses

import pytest

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.config.head import HeadConfig, check_pooling
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import InputError


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'kind': 'pair'}, r"^head\.kind is 'pair'; known: none, sequence, "),
        ({'transform': 'sine'}, r"^head\.transform is 'sine'; known: none, tanh, gelu_tanh, "),
        ({'pooling': 'max'}, r"^head\.pooling is 'max'; known: first, mean, attention, multihead$"),
        ({'features': 'first'}, r"^head\.features is 'first'; known: last, mix$"),
        ({'sentence_layers': -1}, r'^head\.sentence_layers is -1; it must be from 0 to 1024$'),
        ({'outputs': 0}, r'^head\.outputs is 0; it must be at least 1$'),
        ({'dropout_rate': 1.0}, r'^head\.dropout_rate is 1\.0; it must be at least 0 and below 1$'),
    ],
)
def test_bad_fields_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        HeadConfig(**fields)


GRU = ModelConfig(cell='gru', bidirectional=True)
HAN = HeadConfig(kind='sequence', pooling='attention', sentence_layers=1)
EXAMPLES = ExamplesConfig(problem='classification', sentences=30)


def test_what_fits():
    check_pooling(HAN, GRU, EXAMPLES, MeshConfig())
    check_pooling(HAN, ModelConfig(), dataclasses.replace(EXAMPLES, problem='regression'), MeshConfig())
    check_pooling(HeadConfig(), GRU, EXAMPLES, MeshConfig())  # A config whose head is not chosen yet passes.
    check_pooling(HeadConfig(kind='sequence'), GRU, ExamplesConfig(), MeshConfig())
    one_way = dataclasses.replace(GRU, bidirectional=False)
    check_pooling(HeadConfig(kind='token'), one_way, ExamplesConfig(), MeshConfig())
    check_pooling(HeadConfig(kind='choice', pooling='mean'), one_way, ExamplesConfig(), MeshConfig())


@pytest.mark.parametrize(
    'head, model, examples, message',
    [
        (
            {},
            {},
            {'sentences': 0},
            '^head.sentence_layers is 1, and the rows have no sentence borders: examples.sentences is 0; it must say',
        ),
        ({'sentence_layers': 0}, {}, {}, '^head.sentence_layers is 0; it must be above 0 with examples.sentences$'),
        ({'pooling': 'first'}, {}, {}, "^head.pooling is 'first'; it must be 'mean' or 'attention' with head.sent"),
        (
            {'pooling': 'first', 'sentence_layers': 0},
            {'bidirectional': False},
            {'sentences': 0},
            "^head.pooling is 'first'; it must be 'mean' or 'attention' with one direction of model.cell 'gru': a",
        ),
        (
            {'pooling': 'multihead', 'sentence_layers': 0},
            {},
            {'sentences': 0},
            "^head.pooling is 'multihead'; it must be another with model.cell 'gru': 'multihead' has the heads of",
        ),
        ({}, {}, {'problem': 'multiple_choice'}, "^examples.sentences is 30; examples.problem 'multiple_choice' reads"),
        (
            {},
            {'cell': 'none', 'bidirectional': False, 'score': 'location', 'location_length': 29},
            {},
            '^examples.sentences is 30; it must be at most model.location_length 29, the size of a table',
        ),
        ({}, {}, {'text_pair': 'b'}, "^examples.text_pair is 'b'; it must be '' with examples.sentences 30: rows"),
        (
            {},
            {'cell': 'none', 'bidirectional': False, 'attention': 'bigbird(8, 2)'},
            {},
            '^model.attention is .*length',
        ),
        (
            {},
            {'width': 9, 'heads': 3, 'cell': 'none', 'bidirectional': False},
            {},
            '^model.width is 9; it must be even',
        ),
    ],
)
def test_what_does_not_fit_is_named(head: dict, model: dict, examples: dict, message: str):
    parts = (
        dataclasses.replace(HAN, **head),
        dataclasses.replace(GRU, **model),
        dataclasses.replace(EXAMPLES, **examples),
    )
    with pytest.raises(InputError, match=message):
        check_pooling(*parts, MeshConfig())


def test_a_run_is_checked_and_rows_of_sentences_are_not_split():
    with pytest.raises(InputError, match='^head.sentence_layers is 1, and the rows have no sentence borders'):
        RunConfig(task='fine_tuning', head=HAN, model=GRU, examples=ExamplesConfig(problem='classification'))
    with pytest.raises(InputError, match='^mesh.sequence is 2; it must be 1 with examples.sentences 30, whose rows'):
        check_pooling(HAN, ModelConfig(), EXAMPLES, MeshConfig(sequence=2))
