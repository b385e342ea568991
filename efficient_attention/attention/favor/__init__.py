"""FAVOR+ attention of the Performer (Choromanski et al. 2020, arXiv 2009.14794)."""

from efficient_attention.attention.favor import cache, definition, serve
from efficient_attention.attention.room import Room

ROOM = Room(
    kind=definition.FAVOR,
    weights=definition.weights,
    serve=serve.serve,
    init_cache=cache.init,
    decode=cache.decode,
    multiply_adds=definition.multiply_adds,
    serve_share=serve.serve_share,
    feature_map=definition.FAVOR.feature_map,
)
