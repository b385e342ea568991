"""The cost of Linformer: keys and values to slots, queries against slots, and the slots' values mixed."""

from efficient_attention.attention.linformer.definition import Linformer


def multiply_adds(mechanism: Linformer, length: int, heads: int, width: int) -> int:
    """Multiply-adds of one row."""
    return 4 * heads * length * mechanism.rank * width
