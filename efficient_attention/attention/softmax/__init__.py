"""Softmax attention over patterns, and every way to execute it; its definition and cache are those of logits/.

Two names of serve.py are for others: attend.py imports its `BACKENDS`, models/position_bias.py its
`may_hold_all_pairs`.
"""

from efficient_attention.attention.logits import cache
from efficient_attention.attention.logits.definition import weights_of
from efficient_attention.attention.room import Room
from efficient_attention.attention.softmax import definition, serve, split_tokens

ROOM = Room(
    kind=definition.Softmax,
    weights=weights_of,
    serve=serve.serve,
    init_cache=cache.init,
    decode=cache.decode,
    multiply_adds=definition.multiply_adds,
    serve_share=split_tokens.serve_share,
)
