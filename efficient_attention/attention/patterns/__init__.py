"""Patterns: which query position may read which key position. All their names can be imported from here."""

from efficient_attention.attention.patterns.pattern import (
    And,
    Or,
    Pattern,
    PerHead,
    Ranges,
    Reach,
    SomeAndAll,
    Without,
    dense_mask,
    head_patterns,
)
from efficient_attention.attention.patterns.primitives import (
    Block,
    Causal,
    Full,
    GlobalTokens,
    ListedTiles,
    Prefix,
    RandomTiles,
    Strided,
    Summary,
    Window,
)

__all__ = ['And', 'Block', 'Causal', 'Full', 'GlobalTokens', 'ListedTiles', 'Or', 'Pattern', 'PerHead', 'RandomTiles']
__all__ += [
    'Prefix',
    'Ranges',
    'Reach',
    'SomeAndAll',
    'Strided',
    'Summary',
    'Window',
    'Without',
    'dense_mask',
    'head_patterns',
]
