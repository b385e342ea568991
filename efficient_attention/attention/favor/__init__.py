"""FAVOR+ attention of the Performer (Choromanski et al. 2020, arXiv 2009.14794)."""

from efficient_attention.attention.favor import cache, definition, fast_attention
from efficient_attention.attention.implementation import Implementation

IMPLEMENTATION = Implementation(
    kind=definition.FAVOR,
    weights=definition.weights,
    compute=fast_attention.compute_attention,
    init_cache=cache.init,
    decode=cache.decode,
    multiply_adds=definition.multiply_adds,
    compute_shard=fast_attention.compute_attention_shard,
    feature_map=definition.FAVOR.feature_map,
)
