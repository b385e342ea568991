"""Nystrom attention: softmax attention approximated through landmarks (Xiong et al. 2021, arXiv 2102.03902)."""

from efficient_attention.attention.nystrom import definition, serve
from efficient_attention.attention.room import Room

ROOM = Room(
    kind=definition.Nystrom,
    weights=definition.weights,
    serve=serve.serve,
    multiply_adds=definition.multiply_adds,
)
