"""Cross-attention that draws keys: what it goes with, one line for the rest."""

import re

import pytest

from efficient_attention.config.attention import AttentionConfig
from efficient_attention.config.draw_checks import check_draws
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.score import ScoreConfig
from efficient_attention.errors import InputError

DRAWS = {'cross_attention': 'hard(full, sampled=True)', 'decoder_layers': 1}


def test_a_plain_stack_and_the_losses_of_all_targets_serve():
    model = ModelConfig(**DRAWS, reinforce_weight=0.5)
    check_draws(model)
    assert model.decoder.reinforce_weight == 0.5 and model.encoder.cross_attention == 'full'
    check_draws(ModelConfig(loss_chunk=8))


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
        check_draws(ModelConfig(**DRAWS, **fields))


def test_draws_in_self_attention_are_refused():
    line = "model.attention 'hard(causal, sampled=True)' draws keys, from which model.cross_attention alone learns"
    with pytest.raises(InputError, match=re.escape(line)):
        AttentionConfig(attention='hard(causal, sampled=True)')


def test_a_weight_without_draws_is_refused():
    with pytest.raises(
        InputError, match='model.reinforce_weight is 0.5; it must be 1.0 without a model.cross_attention'
    ):
        ScoreConfig(reinforce_weight=0.5)
