"""Tests that the presets read as many keys as their papers say."""

import numpy as np
import pytest

from efficient_attention.attention.patterns import dense_mask
from efficient_attention.attention.patterns.presets import bigbird, longformer, sparse_fixed, sparse_strided
from tests.attention.patterns.pair_by_pair import Definition, check_definition, check_shape

DEFINITIONS: dict[str, Definition] = {
    'longformer(2, 3)': lambda q, k: abs(q - k) <= 2 or q < 3 or k < 3,
    'longformer(2, dilation=3)': lambda q, k: abs(q - k) in (0, 3, 6) or 0 in (q, k),
    'sparse_fixed(6, 2)': lambda q, k: k <= q and (k // 6 == q // 6 or k % 6 >= 4),
    'sparse_strided(6)': lambda q, k: k <= q and (q - k <= 6 or (q - k) % 6 == 0),
}


@pytest.mark.parametrize('text', DEFINITIONS)
def test_a_pattern_means_what_its_definition_says(text: str):
    check_definition(text, DEFINITIONS[text])


def test_the_shape_is_the_broadcast_shape_of_the_positions():
    check_shape('bigbird(4, 1)')


@pytest.mark.parametrize('random', [1, 3])
def test_bigbird_reads_as_many_blocks_as_the_paper_says(random: int):
    """A middle row reads 5 + r blocks, a row next to the ends 4 + r, and the first and last row read all blocks."""
    block, blocks = 4, 16
    for seed in range(3):
        mask = dense_mask(bigbird(block, random, seed), block * blocks, block * blocks, heads=2)
        keys = mask.sum(-1)[:, ::block] // block
        assert (mask.reshape(2, blocks, block, blocks, block).all((2, 4)) == mask[:, ::block, ::block]).all()
        assert (keys[:, [0, -1]] == blocks).all()
        assert (keys[:, [1, -2]] == 4 + random).all()
        assert (keys[:, 2:-2] == 5 + random).all()


def test_bigbird_base_reads_512_keys_in_a_middle_row():
    mask = bigbird().for_key_count(4096)(np.array([[64], [2048], [4031]]), np.arange(4096)[None])
    np.testing.assert_array_equal(mask.sum(1), [448, 512, 448])


def test_longformer_reads_its_window_and_the_global_tokens():
    radius, length = 5, 60
    counts = dense_mask(longformer(radius, tokens=1), length, length).sum(1)
    assert counts[0] == length
    assert (counts[radius + 2 : -radius] == 2 * radius + 1 + 1).all()  # One global key is outside the window.
    assert counts[-1] == radius + 1 + 1


def test_sparse_fixed_reads_its_block_and_the_summaries_of_earlier_ones():
    block, width = 8, 3
    mask = dense_mask(sparse_fixed(block, width), 40, 40)
    for i in range(40):
        in_block = np.arange(40) // block == i // block
        assert mask[i, in_block].sum() == i % block + 1
        assert mask[i, ~in_block].sum() == width * (i // block)


def test_sparse_strided_reads_a_stride_of_neighbours_and_every_stride_th():
    stride = 8
    mask = dense_mask(sparse_strided(stride), 40, 40)
    for i in range(40):
        first, second = set(range(max(0, i - stride), i + 1)), {j for j in range(i + 1) if (i - j) % stride == 0}
        assert set(np.flatnonzero(mask[i])) == first | second
