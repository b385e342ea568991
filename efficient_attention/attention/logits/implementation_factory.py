"""Builds the `Implementation` of a mechanism that is a distribution over a pattern's keys;
such mechanisms differ only in their class.
"""

from efficient_attention.attention.implementation import Implementation
from efficient_attention.attention.logits import cache, definition, query_chunks
from efficient_attention.attention.logits.definition import PatternAttention


def make_pattern_implementation(kind: type[PatternAttention]) -> Implementation:
    """Returns the `Implementation` of a mechanism over a pattern; the class's `normalise_logits` turns logits into
    weights.
    """
    return Implementation(
        kind=kind,
        weights=definition.dense_weights,
        compute=query_chunks.compute_attention,
        init_cache=cache.init,
        decode=cache.decode,
        multiply_adds=definition.multiply_adds,
    )
