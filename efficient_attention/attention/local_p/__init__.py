"""Local attention with predicted centres (Luong et al. 2015, arXiv 1508.04025, section 3.2, "local-p")."""

from efficient_attention.attention.implementation import Implementation
from efficient_attention.attention.local_p import definition

IMPLEMENTATION = Implementation(
    kind=definition.LocalP,
    weights=definition.dense_weights,
    compute=definition.compute_attention,
    multiply_adds=definition.multiply_adds,
)
