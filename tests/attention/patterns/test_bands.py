"""Tests band patterns pair by pair against their definitions."""

import pytest

from efficient_attention.attention.patterns import Window, dense_mask
from tests.attention.patterns.pair_by_pair import Definition, check_definition

DEFINITIONS: dict[str, Definition] = {
    'full': lambda q, k: True,  # noqa: ARG005
    'causal': lambda q, k: k <= q,
    'window(3)': lambda q, k: abs(q - k) <= 3,
    'window(0)': lambda q, k: q == k,
    'window(2, dilation=5)': lambda q, k: abs(q - k) in (0, 5, 10),
    'window(1, 1)': lambda q, k: q - 1 <= k <= q + 1,
}


@pytest.mark.parametrize('text', DEFINITIONS)
def test_a_pattern_means_what_its_definition_says(text: str):
    check_definition(text, DEFINITIONS[text])


def test_a_window_reads_two_radii_and_itself():
    counts = dense_mask(Window(256), 1024, 1024).sum(1)
    assert (counts[256:-256] == 513).all() and counts[0] == counts[-1] == 257
