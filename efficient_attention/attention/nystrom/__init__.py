"""Nystrom attention: softmax attention approximated through landmarks (Xiong et al. 2021, arXiv 2102.03902)."""

from efficient_attention.attention.implementation import Implementation
from efficient_attention.attention.nystrom import definition, fast_attention

IMPLEMENTATION = Implementation(
    kind=definition.Nystrom,
    weights=definition.weights,
    compute=fast_attention.compute_attention,
    multiply_adds=definition.multiply_adds,
)
