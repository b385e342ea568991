"""Sparse Sinkhorn attention: a query reads its own block of the row and one block of the sorted row
(Tay et al. 2020, arXiv 2002.11296).
"""

from efficient_attention.attention.implementation import Implementation
from efficient_attention.attention.sinkhorn import definition, fast_attention

IMPLEMENTATION = Implementation(
    kind=definition.Sinkhorn,
    weights=definition.weights,
    compute=fast_attention.compute_attention,
    multiply_adds=definition.multiply_adds,
)
