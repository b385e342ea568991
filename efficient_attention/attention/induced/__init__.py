"""Induced attention, which reads keys through learned inducing points
(Lee et al. 2019, arXiv 1810.00825; Ma et al. 2021, arXiv 2106.01540).
"""

from efficient_attention.attention.implementation import Implementation
from efficient_attention.attention.induced import definition, fast_attention

IMPLEMENTATION = Implementation(
    kind=definition.Induced,
    weights=definition.weights,
    compute=fast_attention.compute_attention,
    multiply_adds=definition.multiply_adds,
    compress_keys=fast_attention.compress_keys_values,
)
