"""Routing attention: tokens attend within clusters around centroids (Roy et al. 2020, arXiv 2003.05997)."""

from efficient_attention.attention.implementation import Implementation
from efficient_attention.attention.routing import definition, fast_attention

IMPLEMENTATION = Implementation(
    kind=definition.Routing,
    weights=definition.weights,
    compute=fast_attention.compute_attention,
    multiply_adds=definition.multiply_adds,
)
