"""Attention with 1.5-entmax instead of softmax over a pattern's keys (Peters et al. 2019, arXiv 1905.05702)."""

from efficient_attention.attention.entmax.definition import Entmax
from efficient_attention.attention.logits.implementation_factory import make_pattern_implementation

IMPLEMENTATION = make_pattern_implementation(Entmax)
