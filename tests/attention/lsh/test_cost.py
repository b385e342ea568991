"""Multiply-adds of LSH attention, by hand; that they are those of the program is tested in test_cost.py above."""

from efficient_attention.attention.lsh.definition import LSH, multiply_adds


def test_each_round_hashes_and_reads_two_chunks():
    """8 chunks of 8 slots; 16 buckets by 8 directions, and 256 by 16 and 16, of 8 directions each."""
    pairs = 8 * 8 * 16
    assert multiply_adds(LSH(8, 1), 64, 1, 4) == 4 * (64 * 8 + 2 * pairs)
    assert multiply_adds(LSH(8, 3, buckets=256), 60, 2, 4) == 2 * 3 * 4 * (60 * 16 + 2 * pairs)


def test_one_chunk_reads_itself_alone():
    assert multiply_adds(LSH(64, 1), 50, 1, 4) == 4 * (50 * 1 + 2 * 50 * 50)
