"""Sparse Sinkhorn attention: a query reads its block and one block of the sorted row (Tay et al. 2020, 2002.11296)."""

from efficient_attention.attention.room import Room
from efficient_attention.attention.sinkhorn import definition, serve

ROOM = Room(
    kind=definition.Sinkhorn,
    weights=definition.weights,
    serve=serve.serve,
    multiply_adds=definition.multiply_adds,
)
