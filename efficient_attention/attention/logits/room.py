"""Builds the implementation of a mechanism that is a distribution over a pattern's keys; only its class is specific."""

from efficient_attention.attention.logits import cache, definition, serve
from efficient_attention.attention.logits.definition import OverPattern
from efficient_attention.attention.room import Room


def room_over_pattern(kind: type[OverPattern]) -> Room:
    """Returns the implementation of this class, whose `distribute` turns logits into weights."""
    return Room(
        kind=kind,
        weights=definition.weights_of,
        serve=serve.serve,
        init_cache=cache.init,
        decode=cache.decode,
        multiply_adds=definition.multiply_adds,
    )
