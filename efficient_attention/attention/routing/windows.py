"""Cuts rows into blocks for the local heads of routing attention;
a block of queries reads the key blocks that its windows reach.

Letters: n blocks of a row, s queries of a block, m keys that a block's queries are compared with.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Shaped


@dataclasses.dataclass(frozen=True)
class WindowBlocks:
    """How rows are cut into blocks for local heads, and which neighbouring blocks a block's queries read.

    Args:
        size: s, tokens of a block, equal to the window on one side.
        blocks: n, the number of blocks; the last block is padded.
        before: number of blocks before its own that a block reads.
        after: number of blocks after its own that a block reads.
    """

    size: int
    blocks: int
    before: int
    after: int

    @property
    def read_block_count(self) -> int:
        """The number of key blocks that a block of queries reads, its own block included."""
        return self.before + 1 + self.after


def make_window_blocks(length: int, window: int, *, causal: bool) -> WindowBlocks:
    """Returns how rows of `length` tokens are cut into blocks for windows of this size."""
    size = min(window, length)
    blocks = -(-length // size)
    before = int(blocks > 1)
    return WindowBlocks(size, blocks, before, 0 if causal else before)


def query_blocks(x_BHLx: Shaped[Array, 'B H L *rest'], cut: WindowBlocks) -> Shaped[Array, 'B H n s *rest']:
    """Returns the tokens of each row, cut into blocks; zeros fill the last block after the end of the row."""
    extra = cut.size * cut.blocks - x_BHLx.shape[2]
    x_BHLx = jnp.pad(x_BHLx, ((0, 0), (0, 0), (0, extra), *[(0, 0)] * (x_BHLx.ndim - 3)))
    return x_BHLx.reshape(*x_BHLx.shape[:2], cut.blocks, cut.size, *x_BHLx.shape[3:])


def key_blocks(x_BHLx: Shaped[Array, 'B H L *rest'], cut: WindowBlocks) -> Shaped[Array, 'B H n m *rest']:
    """Returns, for each block of queries, all tokens of the key blocks that these queries read.

    Key blocks before the first or after the last block of a row consist of zeros.
    """
    x_BHnsx = query_blocks(x_BHLx, cut)
    around = ((0, 0), (0, 0), (cut.before, cut.after), *[(0, 0)] * (x_BHnsx.ndim - 3))
    x_BHNsx = jnp.pad(x_BHnsx, around)
    return jnp.concatenate([x_BHNsx[:, :, first : first + cut.blocks] for first in range(cut.read_block_count)], axis=3)


def window_positions(cut: WindowBlocks) -> tuple[np.ndarray, np.ndarray]:
    """Returns the row indices of the queries [1, 1, n, s] and keys [1, 1, n, m] of each block;
    some indices lie outside the row.
    """
    query_ns = np.arange(cut.blocks * cut.size, dtype=np.int32).reshape(cut.blocks, cut.size)
    offsets_m = np.arange(-cut.before * cut.size, (1 + cut.after) * cut.size, dtype=np.int32)
    return query_ns[None, None], (query_ns[:, :1] + offsets_m)[None, None]
