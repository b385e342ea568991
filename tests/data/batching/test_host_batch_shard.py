"""Tests that the blocks of all processes together make up each global batch."""

import pytest

from efficient_attention.data.batching.host_batch_shard import HostBatchShard
from efficient_attention.errors import InputError


def test_blocks_are_the_batches():
    blocks = [HostBatchShard(6, process, 3) for process in range(3)]
    assert [block.rows for block in blocks] == [2, 2, 2]
    steps = [[block.global_position(2 * step + row) for block in blocks for row in range(2)] for step in range(2)]
    assert steps == [list(range(6)), list(range(6, 12))]


@pytest.mark.parametrize(
    'sizes, fault',
    [
        ((8, 0, 3), 'batch_size 8 does not divide over 3 processes'),
        ((0, 0, 1), 'batch_size 0 does not divide over 1 processes'),
        ((8, 2, 2), 'process_index 2 of 2 processes'),
    ],
)
def test_a_block_that_there_is_not_is_refused(sizes, fault):
    with pytest.raises(InputError, match=fault):
        HostBatchShard(*sizes)
