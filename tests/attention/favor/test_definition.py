"""Tests FAVOR's options and its random features; test_contract.py tests the weights."""

import jax
import pytest

from efficient_attention.attention.favor.definition import FAVOR
from efficient_attention.attention.favor.random_features import draw_features, log_relu_features
from efficient_attention.errors import InputError


@pytest.mark.parametrize(
    'options, line',
    [
        ({'features': 0}, 'favor features is 0; it must be at least 1'),
        ({'chunk': 0}, 'favor chunk is 0; it must be at least 1'),
        ({'kernel': 'elu'}, "favor kernel is 'elu'; it must be one of softmax, relu"),
    ],
)
def test_options_out_of_range_are_named(options: dict, line: str):
    with pytest.raises(InputError, match=line):
        FAVOR(**options)


def test_features_are_those_that_the_key_draws():
    features = FAVOR(24, kernel='relu').feature_map(jax.random.key(3), 8)
    assert features.log_features is log_relu_features and features.feature_count(8) == 24
    assert (features.projection == draw_features(jax.random.key(3), 24, 8, True)).all()
