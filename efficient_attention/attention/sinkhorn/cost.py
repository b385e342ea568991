"""The cost of Sinkhorn attention: logits of the sort, blocks mixed, and queries against the slots that they read."""

from efficient_attention.attention.sinkhorn.definition import Sinkhorn


def multiply_adds(mechanism: Sinkhorn, length: int, heads: int, width: int) -> int:
    """Multiply-adds of one row; slots that fill up the last block count as tokens, and add a product for their mask."""
    size, blocks = mechanism.block, -(-length // mechanism.block)
    sorted_blocks = min(mechanism.cut, blocks) if mechanism.cut else blocks
    logits = blocks**2 * width
    mixes = 2 * sorted_blocks * blocks * size * width
    if length % size:
        mixes += sorted_blocks * blocks * size
    slots = sorted_blocks * size if mechanism.cut else 2 * size
    return heads * (logits + mixes + 2 * blocks * size * slots * width)
