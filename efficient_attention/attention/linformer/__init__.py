"""Linformer: keys and values projected to a fixed number of slots (Wang et al. 2020, arXiv 2006.04768)."""

from efficient_attention.attention import no_cache
from efficient_attention.attention.linformer import cost, definition, serve
from efficient_attention.attention.room import Room

ROOM = Room(
    kind=definition.Linformer,
    weights=definition.weights,
    serve=serve.serve,
    init_cache=no_cache.init,
    decode=no_cache.decode,
    multiply_adds=cost.multiply_adds,
    slots=serve.slots,
)
