"""Attention patterns, which say which query positions may read which key positions;
all public names can be imported from here.
"""

from efficient_attention.attention.patterns.bands import Causal, Full, Window
from efficient_attention.attention.patterns.blocks import Block
from efficient_attention.attention.patterns.global_tokens import GlobalTokens, Prefix
from efficient_attention.attention.patterns.listed_tiles import ListedTiles
from efficient_attention.attention.patterns.pattern import (
    And,
    Difference,
    Or,
    Pattern,
    PerHead,
    PositionRanges,
    Reach,
    SomeAndAll,
    dense_mask,
    head_patterns,
)
from efficient_attention.attention.patterns.random_tiles import RandomTiles
from efficient_attention.attention.patterns.strided import Strided, Summary

__all__ = ['And', 'Block', 'Causal', 'Full', 'GlobalTokens', 'ListedTiles', 'Or', 'Pattern', 'PerHead', 'RandomTiles']
__all__ += [
    'Prefix',
    'PositionRanges',
    'Reach',
    'SomeAndAll',
    'Strided',
    'Summary',
    'Window',
    'Difference',
    'dense_mask',
    'head_patterns',
]
