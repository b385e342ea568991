"""Attention through learned points (Lee et al. 2019, arXiv 1810.00825; Ma et al. 2021, arXiv 2106.01540)."""

from efficient_attention.attention import no_cache
from efficient_attention.attention.induced import cost, definition, serve
from efficient_attention.attention.room import Room

ROOM = Room(
    kind=definition.Induced,
    weights=definition.weights,
    serve=serve.serve,
    init_cache=no_cache.init,
    decode=no_cache.decode,
    multiply_adds=cost.multiply_adds,
    slots=serve.slots,
)
