"""Tests that a pattern's text can be parsed back to the same pattern."""

import pytest

from efficient_attention.attention.parsing import parse_pattern
from efficient_attention.attention.patterns import Causal, Full, Window
from efficient_attention.attention.patterns.pattern import pattern_text
from tests.attention.test_parsing import TEXTS


@pytest.mark.parametrize('text', [text for text in TEXTS if 'bigbird' not in text])
def test_patterns_are_written_as_they_are_read(text: str):
    assert parse_pattern(pattern_text(TEXTS[text])) == TEXTS[text]


def test_what_a_layer_head_or_length_fills_in_is_not_written():
    pattern = TEXTS['bigbird(16, 2, seed=1)']
    written = 'block(16, back=1, ahead=1) | global_tokens(16, last=16) | random_tiles(2, 16, seed=1, near=1, ends=1)'
    assert pattern_text(pattern) == pattern_text(pattern.for_layer(3).for_head(1, 2).for_key_count(64)) == written
    assert pattern_text(Causal() & (Full() & Window(2))) == 'causal & (full & window(2))'
