"""Linear attention (Katharopoulos et al. 2020, arXiv 2006.16236), and cosFormer (Qin et al. 2022, arXiv 2202.08791)."""

from efficient_attention.attention.implementation import Implementation
from efficient_attention.attention.linear import cache, definition, fast_attention

IMPLEMENTATION = Implementation(
    kind=definition.Linear,
    weights=definition.weights,
    compute=fast_attention.compute_attention,
    init_cache=cache.init,
    decode=cache.decode,
    multiply_adds=definition.multiply_adds,
    compute_shard=fast_attention.compute_attention_shard,
    feature_map=lambda mechanism, *_: definition.ELU if mechanism.kind == 'elu' else None,
)
