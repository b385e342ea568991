"""Defines the attention patterns of papers (Longformer, BigBird, Sparse Transformer) as combinations of basic
patterns.
"""

from efficient_attention.attention.patterns.bands import Causal, Window
from efficient_attention.attention.patterns.blocks import Block
from efficient_attention.attention.patterns.global_tokens import GlobalTokens
from efficient_attention.attention.patterns.pattern import Pattern
from efficient_attention.attention.patterns.random_tiles import RandomTiles
from efficient_attention.attention.patterns.strided import Strided, Summary


def longformer(radius: int, tokens: int = 1, dilation: int = 1) -> Pattern:
    """Returns Longformer's pattern, a window and global tokens (Beltagy et al. 2020, arXiv 2004.05150);
    its base model has radius 256.
    """
    return Window(radius, dilation) | GlobalTokens(tokens)


def bigbird(block: int = 64, random: int = 3, seed: int = 0) -> Pattern:
    """Returns BigBird's pattern of window blocks, global blocks and random blocks
    (Zaheer et al. 2020, arXiv 2007.14062).

    The window has three blocks, the first and the last block are global, and each block reads `random` random blocks.
    """
    return (
        Block(block, back=1, ahead=1)
        | GlobalTokens(block, last=block)
        | RandomTiles(random, block, seed=seed, near=1, ends=1)
    )


def sparse_fixed(block: int = 128, width: int = 8) -> Pattern:
    """Returns the Sparse Transformer's fixed pattern, with its two heads merged into one (Child et al. 2019, arXiv
    1904.10509, section 4.3).
    """
    return Causal() & (Block(block) | Summary(block, width))


def sparse_strided(stride: int = 128) -> Pattern:
    """Returns the Sparse Transformer's strided pattern, with its two heads merged into one
    (Child et al. 2019, arXiv 1904.10509).

    A query reads itself, the last `stride` positions, and every stride-th position before it.
    """
    return Causal() & (Window(stride) | Strided(stride))
