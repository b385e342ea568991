"""Tests strided and summary patterns pair by pair against their definitions."""

import pytest

from tests.attention.patterns.pair_by_pair import Definition, check_definition

DEFINITIONS: dict[str, Definition] = {
    'strided(4)': lambda q, k: (q - k) % 4 == 0,
    'strided(1)': lambda q, k: True,  # noqa: ARG005
    'summary(6, 2)': lambda q, k: k % 6 in (4, 5),  # noqa: ARG005
    'summary(3, 3)': lambda q, k: True,  # noqa: ARG005
}


@pytest.mark.parametrize('text', DEFINITIONS)
def test_a_pattern_means_what_its_definition_says(text: str):
    check_definition(text, DEFINITIONS[text])
