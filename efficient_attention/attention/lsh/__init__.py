"""LSH attention of the Reformer (Kitaev et al. 2020, arXiv 2001.04451)."""

from efficient_attention.attention.implementation import Implementation
from efficient_attention.attention.lsh import definition, fast_attention

IMPLEMENTATION = Implementation(
    kind=definition.LSH,
    weights=definition.weights,
    compute=fast_attention.compute_attention,
    multiply_adds=definition.multiply_adds,
)
