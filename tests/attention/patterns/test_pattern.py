"""Tests what all patterns share: they combine pair by pair, may differ between heads, and are hashable values."""

import numpy as np
import pytest

from efficient_attention.attention.patterns import (
    Block,
    Causal,
    Full,
    GlobalTokens,
    RandomTiles,
    Strided,
    Summary,
    Window,
)
from efficient_attention.attention.patterns.pattern import Pattern, PerHead, dense_mask, head_patterns
from efficient_attention.attention.patterns.presets import bigbird, sparse_strided
from efficient_attention.attention.patterns.tile_table import tile_table
from efficient_attention.errors import InputError
from tests.attention.patterns.pair_by_pair import Definition, check_definition

DEFINITIONS: dict[str, Definition] = {
    'causal & window(4)': lambda q, k: 0 <= q - k <= 4,
    'window(4) | strided(7)': lambda q, k: abs(q - k) <= 4 or (q - k) % 7 == 0,
    'full - window(4)': lambda q, k: abs(q - k) > 4,
}


@pytest.mark.parametrize('text', DEFINITIONS)
def test_a_pattern_means_what_its_definition_says(text: str):
    check_definition(text, DEFINITIONS[text])


def test_combinations_are_elementwise():
    left, right = dense_mask(Window(3), 9, 9), dense_mask(Strided(4), 9, 9)
    np.testing.assert_array_equal(dense_mask(Window(3) & Strided(4), 9, 9), left & right)
    np.testing.assert_array_equal(dense_mask(Window(3) | Strided(4), 9, 9), left | right)
    np.testing.assert_array_equal(dense_mask(Window(3) - Strided(4), 9, 9), left & ~right)


def test_per_head_gives_each_group_of_neighbouring_heads_its_pattern():
    pattern = PerHead(Causal() & Window(2), Strided(3))
    masks = dense_mask(pattern, 8, 8, heads=4)
    for head, own in enumerate([Causal() & Window(2)] * 2 + [Strided(3)] * 2):
        np.testing.assert_array_equal(masks[head], dense_mask(own, 8, 8))
    inside = dense_mask(Causal() & pattern, 8, 8, heads=2)
    np.testing.assert_array_equal(inside[1], dense_mask(Causal() & Strided(3), 8, 8))
    with pytest.raises(InputError, match='3 heads do not divide over 2 patterns'):
        pattern.for_head(0, 3)
    with pytest.raises(InputError, match='call for_head first'):
        dense_mask(pattern, 4, 4)
    with pytest.raises(InputError, match='at least one pattern'):
        PerHead()


def test_heads_that_do_not_differ_share_one_pattern():
    assert head_patterns(Causal(), 4) == [Causal()]
    assert head_patterns(PerHead(Causal(), Full()), 4) == [Causal(), Causal(), Full(), Full()]
    assert len(set(head_patterns(bigbird(4), 4))) == 4


def test_patterns_are_hashable_values():
    made = [
        lambda: Causal() & Window(3),
        lambda: PerHead(Full(), Strided(2)),
        lambda: bigbird(8),
        lambda: Block(2) - Full(),
    ]
    for make in made:
        assert make() == make() and hash(make()) == hash(make())
    assert len({make() for make in made * 2}) == len(made)
    assert Window(3) != Window(3, 2) and Window(3) & Causal() != Causal() & Window(3)
    assert PerHead(Full()) != Full() and 'PerHead(Full()' in repr(PerHead(Full(), Causal()))


def test_a_pattern_without_its_methods_says_what_it_lacks():
    with pytest.raises(NotImplementedError, match='Pattern defines no predicate'):
        dense_mask(Pattern(), 2, 2)
    with pytest.raises(NotImplementedError, match='Pattern says nothing about ranges'):
        tile_table(Pattern(), np.arange(4), np.arange(4), 2)


def test_what_depends_on_the_number_of_keys_says_so():
    for pattern in (RandomTiles(1, 4), GlobalTokens(1, last=1), Causal() & bigbird(4)):
        with pytest.raises(InputError, match='number of keys; call for_key_count first'):
            pattern(np.arange(3)[:, None], np.arange(3)[None])


def test_orders_and_whether_positions_count():
    assert (
        Window(3).residue_modulus,
        Window(3, 4).residue_modulus,
        Strided(9).residue_modulus,
        sparse_strided(16).residue_modulus,
    ) == (1, 4, 9, 16)
    assert not Full().uses_positions and not (Full() | Full()).uses_positions
    assert (Full() & Causal()).uses_positions and Summary(4, 1).uses_positions
