"""Hard attention over a pattern: each query reads one key (Xu et al. 2015, arXiv 1502.03044)."""

import dataclasses

from efficient_attention.attention.hard import definition
from efficient_attention.attention.logits.room import room_over_pattern

ROOM = dataclasses.replace(room_over_pattern(definition.Hard), weights=definition.weights_of, serve=definition.serve)
