"""Tests the multiply-adds of LSH attention against numbers by hand; tests/attention/test_cost.py compares them with the
program.
"""

from efficient_attention.attention.lsh.definition import LSH, multiply_adds


def test_each_round_hashes_and_reads_two_chunks():
    """There are 8 chunks of 8 slots. 16 buckets take 8 directions; 256 buckets are two numbers of 16, of 8 directions
    each.
    """
    pairs = 8 * 8 * 16
    assert multiply_adds(LSH(8, 1), 64, 1, 4) == 4 * (64 * 8 + 2 * pairs)
    assert multiply_adds(LSH(8, 3, buckets=256), 60, 2, 4) == 2 * 3 * 4 * (60 * 16 + 2 * pairs)


def test_one_chunk_reads_itself_alone():
    assert multiply_adds(LSH(64, 1), 50, 1, 4) == 4 * (50 * 1 + 2 * 50 * 50)
