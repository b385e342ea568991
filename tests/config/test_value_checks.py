"""Tests of the checks of config values: which values pass, and the one-line error for all others."""

import math

import pytest

from efficient_attention.config.value_checks import check_in_interval, check_one_of
from efficient_attention.errors import InputError


def test_a_known_value_passes_and_an_unknown_one_names_the_field_and_the_known_values():
    check_one_of('optimizer.name', 'lamb', ('adamw', 'lamb'))
    with pytest.raises(InputError, match=r"^optimizer.name is 'sgd'; known: adamw, lamb$"):
        check_one_of('optimizer.name', 'sgd', ('adamw', 'lamb'))


@pytest.mark.parametrize('value', [0, 0.5, 1])
def test_a_closed_interval_holds_its_ends(value):
    check_in_interval('train.rate', value, 0, 1)


@pytest.mark.parametrize('value', [-0.1, 1.1, math.nan, math.inf, -math.inf])
def test_values_outside_are_refused(value):
    with pytest.raises(InputError, match=rf'^train.rate is {value}; it must be from 0 to 1$'):
        check_in_interval('train.rate', value, 0, 1)


def test_open_ends_are_excluded():
    with pytest.raises(InputError, match='^train.rate is 1; it must be at least 0 and below 1$'):
        check_in_interval('train.rate', 1, 0, 1, high_is_open=True)
    with pytest.raises(InputError, match='^train.rate is 0; it must be above 0 and at most 1$'):
        check_in_interval('train.rate', 0, 0, 1, low_is_open=True)
    with pytest.raises(InputError, match='^train.rate is 1; it must be above 0 and below 1$'):
        check_in_interval('train.rate', 1, 0, 1, low_is_open=True, high_is_open=True)


def test_a_lower_end_alone():
    with pytest.raises(InputError, match='^train.steps is 0; it must be at least 1$'):
        check_in_interval('train.steps', 0, 1)
    with pytest.raises(InputError, match='^train.rate is 0; it must be above 0$'):
        check_in_interval('train.rate', 0, 0, low_is_open=True)


@pytest.mark.parametrize('value', [math.inf, math.nan])
def test_without_an_upper_end_the_value_must_still_be_finite(value):
    check_in_interval('train.rate', 1e30, 0)
    with pytest.raises(InputError, match=f'^train.rate is {value}; it must be at least 0 and finite$'):
        check_in_interval('train.rate', value, 0)
