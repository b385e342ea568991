"""The cost of LSH attention: in each round the hash, and two products over the pairs of each chunk."""

from efficient_attention.attention.lsh.definition import LSH, lay_out
from efficient_attention.attention.lsh.hashing import bucket_factors


def multiply_adds(mechanism: LSH, length: int, heads: int, width: int) -> int:
    """Of one row; a chunk reads itself and the one before, and slots that fill up the last chunk count as positions."""
    layout = lay_out(mechanism, length)
    hashes = length * sum(factor // 2 for factor in bucket_factors(layout.buckets))
    pairs = layout.chunks * layout.size**2 * (1 + layout.before)
    return heads * mechanism.rounds * width * (hashes + 2 * pairs)
