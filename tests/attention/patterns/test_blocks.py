"""Tests block patterns pair by pair against their definitions."""

import pytest

from tests.attention.patterns.pair_by_pair import Definition, check_definition

DEFINITIONS: dict[str, Definition] = {
    'block(5)': lambda q, k: q // 5 == k // 5,
    'block(4, back=1)': lambda q, k: k // 4 in (q // 4, q // 4 - 1),
    'block(4, back=2, ahead=1)': lambda q, k: k // 4 in range(q // 4 - 2, q // 4 + 2),
}


@pytest.mark.parametrize('text', DEFINITIONS)
def test_a_pattern_means_what_its_definition_says(text: str):
    check_definition(text, DEFINITIONS[text])
