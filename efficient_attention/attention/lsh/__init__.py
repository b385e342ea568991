"""LSH attention of the Reformer (Kitaev et al. 2020, arXiv 2001.04451)."""

from efficient_attention.attention.lsh import definition, serve
from efficient_attention.attention.room import Room

ROOM = Room(
    kind=definition.LSH,
    weights=definition.weights,
    serve=serve.serve,
    multiply_adds=definition.multiply_adds,
)
