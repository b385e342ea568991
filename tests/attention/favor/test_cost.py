"""Tests FAVOR's count of multiply-adds against numbers by hand; tests/attention/test_cost.py compares it with the
program.
"""

from efficient_attention.attention.favor.definition import FAVOR, multiply_adds


def test_features_sums_and_where_causal_the_pairs_of_a_chunk():
    assert multiply_adds(FAVOR(16), 100, 2, 8) == 2 * 100 * 4 * 16 * 8
    assert multiply_adds(FAVOR(16, causal=True, chunk=32), 100, 2, 8) == 2 * 100 * (4 * 16 * 8 + 32 * (16 + 8))
    assert multiply_adds(FAVOR(16, causal=True), 20, 1, 8) == 20 * (4 * 16 * 8 + 20 * (16 + 8))
