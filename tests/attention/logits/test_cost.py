"""Tests the count of all query-key pairs; test_registry.py compares it with the program."""

import pytest

from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.registry import multiply_adds


@pytest.mark.parametrize('text', ['sparsemax(causal & window(8))', 'entmax', 'hard', 'local_p(4)'])
def test_all_pairs_are_computed_whatever_the_pattern(text: str):
    assert multiply_adds(parse_mechanism(text), 100, 3, 16) == 2 * 3 * 100 * 100 * 16
