"""Which fields make a mixture; tests/config/test_pairs.py has those that are refused."""

import dataclasses

import pytest

from efficient_attention.config.pair_rows import PairRowsConfig
from efficient_attention.config.pairs import PairsConfig


@pytest.mark.parametrize(
    'fields, is_mixed', [({}, False), ({'mixing_limit': 9}, True), ({'mixing_temperature': 2.0}, True)]
)
def test_a_limit_or_a_temperature_makes_a_mixture(fields: dict, is_mixed: bool):
    assert PairRowsConfig(**fields).is_mixed is is_mixed is PairsConfig(**fields).is_mixed


def test_both_groups_of_fields_are_small_enough_to_read_at_once():
    rows, pairs = (len(dataclasses.fields(group)) for group in (PairRowsConfig, PairsConfig))
    assert rows <= 12 and pairs - rows <= 12
