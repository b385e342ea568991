"""Tests the multiply-adds of linear attention against numbers by hand; test_registry.py compares them with the
program.
"""

from efficient_attention.attention.linear.definition import Linear, multiply_adds


def test_sums_of_values_and_ones_and_where_causal_the_pairs_of_a_chunk():
    assert multiply_adds(Linear(), 100, 2, 8) == 2 * 100 * 2 * 8 * 9
    assert multiply_adds(Linear(causal=True, chunk=32), 100, 2, 8) == 2 * 100 * (2 * 8 * 9 + 2 * 32 * 8)
    assert multiply_adds(Linear(causal=True), 20, 1, 8) == 20 * (2 * 8 * 9 + 2 * 20 * 8)
