"""Attention through learned inducing points (Lee et al. 2019, arXiv 1810.00825; Ma et al. 2021, arXiv 2106.01540)."""

from efficient_attention.attention.induced import definition, serve
from efficient_attention.attention.room import Room

ROOM = Room(
    kind=definition.Induced,
    weights=definition.weights,
    serve=serve.serve,
    multiply_adds=definition.multiply_adds,
    slots=serve.slots,
)
