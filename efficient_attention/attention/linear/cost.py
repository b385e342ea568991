"""The cost of linear attention: sums over keys and sums read by queries, of values and of a one."""

from efficient_attention.attention.linear.definition import Linear


def multiply_adds(mechanism: Linear, length: int, heads: int, width: int) -> int:
    """Multiply-adds of one row; where causal also two products over the pairs of each chunk."""
    chunk = min(mechanism.chunk, length) if mechanism.causal else 0
    if mechanism.kind == 'cos':  # two blocks of features, and a position behind each vector
        return heads * length * (4 * width * (width + 2) + chunk * (3 * width + 1))
    return heads * length * 2 * width * (width + 1 + chunk)
