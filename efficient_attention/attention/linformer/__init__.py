"""Linformer: keys and values projected to a fixed number of compressed keys (Wang et al. 2020, arXiv 2006.04768)."""

from efficient_attention.attention.linformer import definition, serve
from efficient_attention.attention.room import Room

ROOM = Room(
    kind=definition.Linformer,
    weights=definition.weights,
    serve=serve.serve,
    multiply_adds=definition.multiply_adds,
    slots=serve.slots,
)
