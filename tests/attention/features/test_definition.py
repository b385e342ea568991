"""Tests what all mechanisms with feature maps share; the table of test_registry.py tests their weights."""

import jax.numpy as jnp
import pytest

from efficient_attention.attention.features.definition import FeatureAttention, feature_weights
from efficient_attention.attention.linear.definition import ELU, Linear
from efficient_attention.attention.parsing import parse_mechanism
from tests.attention.requests import make_request


@pytest.mark.parametrize('text', ['favor', 'linear'])
def test_options_say_whether_it_is_causal(text: str):
    plain, causal = parse_mechanism(text), parse_mechanism(f'{text}(causal=True)')
    assert isinstance(plain, FeatureAttention) and not plain.capabilities.has_dropout and plain.has_causal_option
    assert (plain.is_causal, plain.requirements.positions) == (False, False)
    assert (causal.is_causal, causal.requirements.positions) == (True, True)


def test_weights_have_no_bias():
    x = jnp.ones((1, 3, 2, 4))
    with pytest.raises(NotImplementedError, match='^linear has no additive bias$'):
        feature_weights(make_request(x, x, x, Linear(), bias=jnp.zeros((1, 1, 3, 3))), ELU)
