"""Attention by entmax with alpha 1.5 over a pattern (Peters et al. 2019, arXiv 1905.05702)."""

from efficient_attention.attention.entmax.definition import Entmax
from efficient_attention.attention.logits.room import room_over_pattern

ROOM = room_over_pattern(Entmax)
