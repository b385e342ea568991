"""The fields of scores: one clear line for each that does not fit."""

import pytest

from efficient_attention.config.memory_checks import check_memory
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.run import RunConfig
from efficient_attention.config.score import ScoreConfig
from efficient_attention.config.sequence_checks import check_sequence
from efficient_attention.errors import InputError

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
def test_bad_fields_are_named(fields: dict, line: str):
    with pytest.raises(InputError, match=line):
        ScoreConfig(**fields)


def test_rows_beyond_the_vectors_of_positions_are_refused():
    model = ModelConfig(score='location', location_length=64, positions='none', token_types=0)
    with pytest.raises(InputError, match='data.length 128 is beyond the position table, model.location_length 64'):
        RunConfig(model=model, task='language_modelling')
    with pytest.raises(InputError, match="model.memory_length is 8; model.score 'location' has vectors for positions"):
        check_memory(ModelConfig(score='location', memory_length=8, attention='causal', positions='none'))


def test_rows_that_are_split_over_devices_have_no_additive_scores():
    with pytest.raises(
        InputError, match="mesh.sequence is 2; model.score 'additive' has no form for rows that are split"
    ):
        check_sequence(MeshConfig(sequence=2), ModelConfig(score='additive'), {})
