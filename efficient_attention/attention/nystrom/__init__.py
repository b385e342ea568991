"""Nystrom attention: softmax through landmarks (Xiong et al. 2021, arXiv 2102.03902)."""

from efficient_attention.attention import no_cache
from efficient_attention.attention.nystrom import cost, definition, serve
from efficient_attention.attention.room import Room

ROOM = Room(
    kind=definition.Nystrom,
    weights=definition.weights,
    serve=serve.serve,
    init_cache=no_cache.init,
    decode=no_cache.decode,
    multiply_adds=cost.multiply_adds,
)
