"""Softmax attention over patterns, with all its backends; its definition and cache come from logits/.

Other packages import two names of serve.py: attend.py its `BACKENDS`, models/position_bias.py its
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
