"""Linear attention (Katharopoulos et al. 2020, arXiv 2006.16236), and cosFormer (Qin et al. 2022, 2202.08791)."""

from efficient_attention.attention.linear import cache, definition, serve
from efficient_attention.attention.room import Room

ROOM = Room(
    kind=definition.Linear,
    weights=definition.weights,
    serve=serve.serve,
    init_cache=cache.init,
    decode=cache.decode,
    multiply_adds=definition.multiply_adds,
    serve_share=serve.serve_share,
    feature_map=lambda mechanism, *_: definition.ELU if mechanism.kind == 'elu' else None,
)
