"""Tests patterns of listed tiles pair by pair against their definition."""

from tests.attention.patterns.pair_by_pair import check_definition


def test_only_the_listed_pairs_of_tiles_are_allowed():
    pairs = ((0, 2), (3, 1), (3, 5))
    check_definition('listed_tiles(4, 0, 2, 3, 1, 3, 5)', lambda q, k: (q // 4, k // 4) in pairs)
