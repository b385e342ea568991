"""Linformer: keys and values projected to a fixed number of compressed keys (Wang et al. 2020, arXiv 2006.04768)."""

from efficient_attention.attention.implementation import Implementation
from efficient_attention.attention.linformer import definition, fast_attention

IMPLEMENTATION = Implementation(
    kind=definition.Linformer,
    weights=definition.weights,
    compute=fast_attention.compute_attention,
    multiply_adds=definition.multiply_adds,
    compress_keys=fast_attention.compress_keys_values,
)
