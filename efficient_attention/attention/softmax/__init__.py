"""Softmax attention over the query-key pairs that a pattern allows, and its backends. The folder logits/ has its dense
definition and its decoding cache.

Modules outside this folder import two names of backend_choice.py: attend.py `BACKENDS`, models/position_bias.py
`may_hold_all_pairs`.
"""

from efficient_attention.attention.implementation import Implementation
from efficient_attention.attention.logits import cache
from efficient_attention.attention.logits.definition import dense_weights
from efficient_attention.attention.softmax import backend_choice, definition, sequence_parallel

IMPLEMENTATION = Implementation(
    kind=definition.Softmax,
    weights=dense_weights,
    compute=backend_choice.compute_attention,
    zeroes_padding=True,
    init_cache=cache.init,
    decode=cache.decode,
    multiply_adds=definition.multiply_adds,
    compute_shard=sequence_parallel.compute_attention_shard,
)
