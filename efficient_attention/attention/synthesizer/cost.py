"""The cost of synthesizers: that of softmax attention over the same pattern."""

from efficient_attention.attention.room import Room
from efficient_attention.attention.synthesizer.definition import Synthesizer
from efficient_attention.attention.synthesizer.serve import softmax_of


def multiply_adds(softmax: Room, mechanism: Synthesizer, length: int, heads: int, width: int) -> int:
    """Multiply-adds of one row."""
    return softmax.multiply_adds(softmax_of(softmax, mechanism), length, heads, mechanism.compared_width(width))
