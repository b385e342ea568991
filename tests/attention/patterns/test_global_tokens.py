"""Tests the prefix and global-token patterns pair by pair against their definitions."""

import pytest

from tests.attention.patterns.pair_by_pair import Definition, M, check_definition

DEFINITIONS: dict[str, Definition] = {
    'prefix(5)': lambda q, k: k <= q or (q < 5 and k < 5),
    'global_tokens(2)': lambda q, k: q < 2 or k < 2,
    'global_tokens(2, last=3)': lambda q, k: q < 2 or k < 2 or q >= M - 3 or k >= M - 3,
    'global_tokens(0, last=1)': lambda q, k: M - 1 in (q, k),
}


@pytest.mark.parametrize('text', DEFINITIONS)
def test_a_pattern_means_what_its_definition_says(text: str):
    check_definition(text, DEFINITIONS[text])
