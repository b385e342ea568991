"""Tests the options of linear attention; the table of test_registry.py tests its weights."""

import pytest

import efficient_attention as ea
from efficient_attention.attention.linear.definition import Linear
from efficient_attention.attention.parsing import required_model_settings
from efficient_attention.errors import InputError


def test_it_is_named_in_texts_and_from_the_package():
    assert ea.Linear is Linear
    assert ea.parse_mechanism('linear') == Linear()
    assert ea.parse_mechanism('linear(causal=True, chunk=32)') == Linear(causal=True, chunk=32)


def test_options_out_of_range_are_named():
    with pytest.raises(InputError, match='linear chunk is 0; it must be at least 1'):
        Linear(chunk=0)
    for options, line in (
        ({'kind': 'sin'}, "linear kind is 'sin'; it must be elu or cos"),
        ({'kind': 'cos'}, "linear length is 0; it must be above 0 for 'cos', else 0"),
        ({'length': 4}, "linear length is 4; it must be above 0 for 'cos', else 0"),
    ):
        with pytest.raises(InputError, match=line):
            Linear(**options)


def test_it_draws_nothing_and_has_no_weights_to_drop():
    assert not Linear().randomness.always and not Linear().capabilities.has_dropout
    assert required_model_settings(Linear(causal=True)) == 'model.attention_dropout_rate=0.0'
