"""Routing attention: tokens attend within clusters around centroids (Roy et al. 2020, arXiv 2003.05997)."""

from efficient_attention.attention.room import Room
from efficient_attention.attention.routing import definition, serve

ROOM = Room(
    kind=definition.Routing,
    weights=definition.weights,
    serve=serve.serve,
    multiply_adds=definition.multiply_adds,
)
