"""Tests pictures of patterns: shades, characters and figures show the pattern and its tiles."""

import numpy as np
import pytest

from efficient_attention.attention.parsing import parse_pattern
from efficient_attention.attention.patterns import Causal, Full, Strided, dense_mask
from efficient_attention.attention.patterns.picture import (
    EMPTY,
    MASKED_OUT,
    PARTIAL,
    WHOLE,
    ascii_picture,
    describe_pattern_cost,
    listed_positions,
    pair_density,
    pair_shades,
    tile_shades,
)
from efficient_attention.attention.patterns.tile_table import tile_table


def test_shades_tell_computed_from_allowed_pairs():
    shades = pair_shades(Causal(), np.arange(10), 4)
    np.testing.assert_array_equal(shades >= PARTIAL, np.tri(10, dtype=bool))
    assert (shades[4:8, :4] == WHOLE).all() and shades[0, 3] == MASKED_OUT and shades[0, 4] == EMPTY
    np.testing.assert_array_equal(
        tile_shades(tile_table(Causal(), np.arange(10), np.arange(10), 4)),
        [[PARTIAL, EMPTY, EMPTY], [WHOLE, PARTIAL, EMPTY], [WHOLE, WHOLE, PARTIAL]],
    )


def test_listed_by_residue_a_stride_is_a_diagonal_of_blocks():
    shades = pair_shades(Strided(4), listed_positions(16, 4), 4, 4)
    np.testing.assert_array_equal(shades, WHOLE * np.kron(np.eye(4, dtype=int), np.ones((4, 4), int)))


def test_characters_are_darker_where_more_is_allowed():
    assert ascii_picture(Causal(), 3) == '█ · ·\n█ █ ·\n█ █ █'
    assert ascii_picture(parse_pattern('strided(4)'), 16, columns=4) == '\n'.join(['░ ░ ░ ░'] * 4)
    assert ascii_picture(parse_pattern('causal & window(6)'), 16, columns=2) == '▒ ·\n░ ▒'
    assert ascii_picture(Full(), 5, columns=2) == '█ █\n█ █'


def test_long_patterns_are_drawn_by_what_is_known_of_ranges():
    assert ascii_picture(Causal(), 65_536, columns=4) == '▒ · · ·\n█ ▒ · ·\n█ █ ▒ ·\n█ █ █ ▒'


@pytest.mark.parametrize('text', ['causal', 'longformer(8, 2)', 'strided(16)', 'summary(16, 2)'])
def test_density_is_exact_or_near(text: str):
    pattern = parse_pattern(text)
    assert pair_density(pattern, 500) == (pytest.approx(dense_mask(pattern, 500, 500).mean()), True)
    share, is_exact = pair_density(pattern, 4096)
    assert not is_exact and share == pytest.approx(dense_mask(pattern, 4096, 4096).mean(), rel=0.1)


def test_description_counts_the_tiles_of_each_pass():
    assert describe_pattern_cost(parse_pattern('sparse_strided(8)'), 64, 8) == [
        'pairs allowed: 17.285% of 64 x 64, 11.1 keys a query',
        'tiles of 8 kept: 23 of 64 (35.938%), 0 of them need no mask',
        'pass 1 of 2: 15 tiles, positions in natural order',
        'pass 2 of 2: 8 tiles, positions by residue modulo 8',
    ]
    assert describe_pattern_cost(Full(), 16, 4)[1:] == [
        'tiles of 4 kept: 16 of 16 (100.000%), 16 of them need no mask',
        'pass 1 of 1: 16 tiles, positions in natural order',
    ]
