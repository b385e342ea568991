"""Attention with sparsemax instead of softmax over a pattern's keys (Martins & Astudillo 2016, arXiv 1602.02068)."""

from efficient_attention.attention.logits.implementation_factory import make_pattern_implementation
from efficient_attention.attention.sparsemax.definition import Sparsemax

IMPLEMENTATION = make_pattern_implementation(Sparsemax)
