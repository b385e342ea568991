"""Hard attention over a pattern: each query reads one key (Xu et al. 2015, arXiv 1502.03044)."""

from efficient_attention.attention.hard.definition import Hard
from efficient_attention.attention.logits.room import room_over_pattern

ROOM = room_over_pattern(Hard)
