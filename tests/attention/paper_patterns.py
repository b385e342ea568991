"""Defines the patterns as sets of positions, as their papers do; tests compare the library's predicates with these
sets.

A pattern is a function from (query position, number of keys) to the positions that the query reads. Sets may reach
beyond the text at both ends, as the papers' formulas do; `readable` leaves out positions that do not exist.

A new pattern is added here as a function, and to `PATTERNS` of test_contract.py, `TEXTS` of test_parsing.py and
random_patterns.py.
"""

from collections.abc import Callable, Sequence

import numpy as np

Reads = Callable[[int, int], set[int]]


def full() -> Reads:
    """Returns the pattern of an encoder, whose positions read all positions: Vaswani et al. 2017, arXiv 1706.03762."""
    return lambda i, keys: set(range(keys))  # noqa: ARG005


def causal() -> Reads:
    """Returns the pattern of a decoder: positions read all positions up to themselves (Vaswani et al. 2017, section
    3.2.3).
    """
    return lambda i, keys: set(range(i + 1))  # noqa: ARG005


def prefix(count: int) -> Reads:
    """Returns the prefix pattern, full in the prefix and causal after it: Raffel et al. 2019, arXiv 1910.10683, section
    3.2.1.
    """
    return lambda i, keys: set(range(count)) if i < count else set(range(i + 1))  # noqa: ARG005


def window(radius: int, dilation: int = 1) -> Reads:
    """Returns neighbours on each side, with gaps where dilated: Beltagy et al. 2020, arXiv 2004.05150, section 3.1."""
    return lambda i, keys: {i + step * dilation for step in range(-radius, radius + 1)}  # noqa: ARG005


def block(size: int, back: int = 0, ahead: int = 0) -> Reads:
    """Returns the query's block of Qiu et al. 2019, arXiv 1911.02972.

    Neighbouring blocks are those of Zaheer et al. 2020, arXiv 2007.14062, section 2.
    """

    def reads(i: int, keys: int) -> set[int]:
        blocks = [set(range(start, start + size)) for start in range(0, keys, size)]
        own = i // size
        return set().union(*blocks[max(0, own - back) : own + ahead + 1])

    return reads


def strided(stride: int) -> Reads:
    """Returns the strided pattern (i - j) mod l = 0, on both sides: Child et al. 2019, arXiv 1904.10509,
    section 4.3.
    """
    return lambda i, keys: {*range(i, -1, -stride), *range(i, keys, stride)}


def summary(size: int, width: int) -> Reads:
    """Returns the summary positions j mod l in {t, t + 1, ..., l - 1} with t = l - c: Child et al. 2019,
    section 4.3.
    """
    return lambda i, keys: {j for j in range(keys) if j % size in range(size - width, size)}  # noqa: ARG005


def global_tokens(count: int, last: int = 0) -> Reads:
    """Returns the pattern where chosen positions read all and are read by all: Longformer, section 3.1; BigBird,
    section 2.
    """

    def reads(i: int, keys: int) -> set[int]:
        chosen = {*range(count), *range(keys - last, keys)}
        return set(range(keys)) if i in chosen else chosen

    return reads


def tiles(size: int, chosen: set[tuple[int, int]]) -> Reads:
    """Returns the pattern where each position of query tile a reads each position of key tile b, for each (a, b) of
    `chosen`.
    """

    def reads(i: int, keys: int) -> set[int]:  # noqa: ARG001
        return {b * size + place for a, b in chosen if a == i // size for place in range(size)}

    return reads


def sparse_fixed(size: int, width: int) -> Reads:
    """Returns the fixed pattern of Child et al. 2019, section 4.3: the query's own block and the summaries, up to i.

    It joins the sets of the paper's two heads.
    """
    return both(causal(), either(block(size), summary(size, width)))


def sparse_strided(stride: int) -> Reads:
    """Returns the strided pattern of Child et al. 2019, section 4.3: {t, t + 1, ..., i} with t = max(0, i - l), and (i
    - j) mod l = 0, up to i.
    """
    return lambda i, keys: {*range(max(0, i - stride), i + 1), *range(i, -1, -stride)}  # noqa: ARG005


def both(left: Reads, right: Reads) -> Reads:
    """Returns the positions that a query reads in both patterns."""
    return lambda i, keys: left(i, keys) & right(i, keys)


def either(*patterns: Reads) -> Reads:
    """Returns the positions that a query reads in at least one of the patterns."""
    return lambda i, keys: set().union(*(pattern(i, keys) for pattern in patterns))


def without(left: Reads, right: Reads) -> Reads:
    """Returns the positions that a query reads in the left pattern and not in the right one."""
    return lambda i, keys: left(i, keys) - right(i, keys)


def readable(heads: Sequence[Reads], queries: Sequence[int], keys: Sequence[int]) -> np.ndarray:
    """Returns booleans [H, L, M] for query and key positions, from the pattern of each head; the row has M keys."""
    found = np.zeros((len(heads), len(queries), len(keys)), bool)
    for head, reads in enumerate(heads):
        for row, i in enumerate(queries):
            found[head, row] = [j in reads(int(i), len(keys)) for j in keys]
    return found
