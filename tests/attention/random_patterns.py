"""Makes random patterns for property tests: expressions of every primitive with small sizes."""

import itertools

from hypothesis import strategies as st

from efficient_attention.attention.patterns import (
    Block,
    Causal,
    Full,
    GlobalTokens,
    ListedTiles,
    Pattern,
    Prefix,
    RandomTiles,
    Strided,
    Summary,
    Window,
)

SMALL = st.integers(1, 9)
PRIMITIVES: list[st.SearchStrategy[Pattern]] = [
    st.just(Full()),
    st.just(Causal()),
    st.builds(Prefix, SMALL),
    st.builds(Window, st.integers(0, 9), st.sampled_from([1, 1, 2, 3, 5])),
    st.builds(Block, SMALL, st.integers(0, 2), st.integers(0, 2)),
    st.builds(Strided, SMALL),
    st.integers(1, 9).flatmap(lambda block: st.builds(Summary, st.just(block), st.integers(1, block))),
    st.builds(GlobalTokens, st.integers(1, 4), st.integers(0, 3)),
    st.builds(GlobalTokens, st.just(0), st.integers(1, 3)),
    # Patterns are made beforehand: beartype checks random elements of tuples, and Hypothesis forbids randomness.
    st.sampled_from(
        [RandomTiles(*sizes) for sizes in itertools.product((1, 2, 3), range(1, 10), (0, 1, 57), (-1, 0, 1), (0, 1))]
    ),
    st.sampled_from([ListedTiles(size, pairs) for size in (1, 4, 9) for pairs in ((0, 2), (1, 0, 1, 1, 3, 2))]),
]


def combine(patterns: st.SearchStrategy[Pattern]) -> st.SearchStrategy[Pattern]:
    """Returns random pairs of patterns that are joined by `&`, `|` or `-`."""
    joins = st.sampled_from([lambda a, b: a & b, lambda a, b: a | b, lambda a, b: a - b])
    return st.builds(lambda join, left, right: join(left, right), joins, patterns, patterns)


PATTERNS: st.SearchStrategy[Pattern] = st.recursive(st.one_of(PRIMITIVES), combine, max_leaves=5)
