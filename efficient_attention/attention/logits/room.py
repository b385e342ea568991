"""The room of a mechanism that is a distribution over a pattern's keys: all but its class is shared."""

from efficient_attention.attention.logits import cache, definition, serve
from efficient_attention.attention.logits.definition import OverPattern
from efficient_attention.attention.room import Room


def room_over_pattern(kind: type[OverPattern]) -> Room:
    """The room of this class, which says how logits are distributed."""
    return Room(
        kind=kind,
        weights=definition.weights_of,
        serve=serve.serve,
        init_cache=cache.init,
        decode=cache.decode,
        multiply_adds=definition.multiply_adds,
    )
