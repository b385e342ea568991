"""Local attention with predicted places (Luong et al. 2015, arXiv 1508.04025, section 3.2, "local-p")."""

from efficient_attention.attention import no_cache
from efficient_attention.attention.local_p import cost, definition, serve
from efficient_attention.attention.room import Room

ROOM = Room(
    kind=definition.LocalP,
    weights=definition.weights,
    serve=serve.serve,
    init_cache=no_cache.init,
    decode=no_cache.decode,
    multiply_adds=cost.multiply_adds,
)
