"""Builds the implementation of a mechanism that is a distribution over a pattern's keys; only its class is specific."""

from efficient_attention.attention.implementation import Implementation
from efficient_attention.attention.logits import cache, definition, query_chunks
from efficient_attention.attention.logits.definition import PatternAttention


def make_pattern_implementation(kind: type[PatternAttention]) -> Implementation:
    """Returns the implementation of this class, whose `distribute` turns logits into weights."""
    return Implementation(
        kind=kind,
        weights=definition.dense_weights,
        compute=query_chunks.compute_attention,
        init_cache=cache.init,
        decode=cache.decode,
        multiply_adds=definition.multiply_adds,
    )
