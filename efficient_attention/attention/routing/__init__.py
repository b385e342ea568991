"""Routing attention: tokens attend within clusters around centroids (Roy et al. 2020, arXiv 2003.05997)."""

from efficient_attention.attention import no_cache
from efficient_attention.attention.room import Room
from efficient_attention.attention.routing import cost, definition, serve

ROOM = Room(
    kind=definition.Routing,
    weights=definition.weights,
    serve=serve.serve,
    init_cache=no_cache.init,
    decode=no_cache.decode,
    multiply_adds=cost.multiply_adds,
)
