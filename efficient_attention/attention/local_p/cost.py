"""The cost of local-p: as of all pairs, since places are known to the program alone."""

from efficient_attention.attention.local_p.definition import LocalP
from efficient_attention.attention.logits import cost


def multiply_adds(mechanism: LocalP, length: int, heads: int, width: int) -> int:
    """Multiply-adds of one row of so many queries and keys; the products that predict places are the module's."""
    return cost.multiply_adds(mechanism, length, heads, width)
