"""Hard attention over a pattern: each query reads one key (Xu et al. 2015, arXiv 1502.03044)."""

import dataclasses

from efficient_attention.attention.hard import definition
from efficient_attention.attention.logits.implementation_factory import make_pattern_implementation

IMPLEMENTATION = dataclasses.replace(
    make_pattern_implementation(definition.Hard), weights=definition.dense_weights, compute=definition.compute_attention
)
