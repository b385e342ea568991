"""The patterns of papers as combinations of others."""

from efficient_attention.attention.patterns.bands import Causal, Window
from efficient_attention.attention.patterns.blocks import Block
from efficient_attention.attention.patterns.global_tokens import GlobalTokens
from efficient_attention.attention.patterns.pattern import Pattern
from efficient_attention.attention.patterns.random_tiles import RandomTiles
from efficient_attention.attention.patterns.strided import Strided, Summary


def longformer(radius: int, tokens: int = 1, dilation: int = 1) -> Pattern:
    """A window and global tokens (Beltagy et al. 2020, arXiv 2004.05150); base: radius 256."""
    return Window(radius, dilation) | GlobalTokens(tokens)


def bigbird(block: int = 64, random: int = 3, seed: int = 0) -> Pattern:
    """Three blocks of window, first and last block global, random blocks (Zaheer et al. 2020, arXiv 2007.14062)."""
    return (
        Block(block, back=1, ahead=1)
        | GlobalTokens(block, last=block)
        | RandomTiles(random, block, seed=seed, near=1, ends=1)
    )


def sparse_fixed(block: int = 128, width: int = 8) -> Pattern:
    """Both fixed heads of the Sparse Transformer merged into one (Child et al. 2019, arXiv 1904.10509, section 4.3)."""
    return Causal() & (Block(block) | Summary(block, width))


def sparse_strided(stride: int = 128) -> Pattern:
    """Both strided heads merged into one: the last `stride` positions and the query, and every stride-th before it."""
    return Causal() & (Window(stride) | Strided(stride))
