"""Local attention with predicted centres (Luong et al. 2015, arXiv 1508.04025, section 3.2, "local-p")."""

from efficient_attention.attention.local_p import definition
from efficient_attention.attention.room import Room

ROOM = Room(
    kind=definition.LocalP,
    weights=definition.weights_of,
    serve=definition.serve,
    multiply_adds=definition.multiply_adds,
)
