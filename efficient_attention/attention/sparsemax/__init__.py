"""Attention with sparsemax instead of softmax over a pattern's keys (Martins & Astudillo 2016, arXiv 1602.02068)."""

from efficient_attention.attention.logits.room import room_over_pattern
from efficient_attention.attention.sparsemax.definition import Sparsemax

ROOM = room_over_pattern(Sparsemax)
