"""Draws attention patterns as images or text, and counts the query-key pairs and tiles that a pattern allows."""

import numpy as np

from efficient_attention.attention.patterns.pattern import Pattern
from efficient_attention.attention.patterns.tile_table import (
    TileTable,
    order_by_residue,
    split_into_disjoint_patterns,
    tile_table,
)

# Shades of forbidden query-key pairs: in a skipped tile (EMPTY), or in a computed tile with a mask (MASKED_OUT).
# Shades of allowed query-key pairs: in a tile with a mask (PARTIAL), or in a tile of only allowed pairs (WHOLE).
EMPTY, MASKED_OUT, PARTIAL, WHOLE = range(4)

EXACT_LENGTH = 2048  # largest length for which every query-key pair is evaluated
SAMPLED_ROWS = 1024  # number of queries that are sampled for longer rows
CHARACTERS = '·░▒▓█'  # character by share of allowed pairs: none, <= 1/3, <= 2/3, more, all


def pair_shades(pattern: Pattern, positions: np.ndarray, size: int, order: int = 1) -> np.ndarray:
    """Returns the shade of each query-key pair in a picture of a pattern, uint8 [L, L],
    for positions in the listed order.
    """
    allowed = np.broadcast_to(pattern(positions[:, None], positions[None]), (len(positions),) * 2)
    tiles = tile_shades(tile_table(pattern, positions, positions, size, order))
    tile_of = np.arange(len(positions)) // size
    spread = tiles[tile_of[:, None], tile_of[None]]
    return np.where(allowed, spread, np.minimum(spread, MASKED_OUT)).astype(np.uint8)


def tile_shades(table: TileTable) -> np.ndarray:
    """Returns the shade of each tile in a picture of a pattern, uint8 [query tiles, key tiles]: EMPTY, PARTIAL or
    WHOLE.
    """
    shades = np.full((table.query_tiles, table.key_tiles), EMPTY, np.uint8)
    rows = np.repeat(np.arange(table.query_tiles), table.key_tile_counts)
    shades[rows, table.keys] = np.where(table.is_whole, WHOLE, PARTIAL)
    return shades


def listed_positions(length: int, order: int) -> np.ndarray:
    """Returns the positions 0, 1, ... `length` - 1 sorted by position modulo `order`."""
    return np.arange(length)[order_by_residue(np.arange(length), order)]


def ascii_picture(pattern: Pattern, length: int, columns: int = 32) -> str:
    """Returns a text picture of a pattern with at most `columns` x `columns` characters;
    queries run downwards, keys to the right.

    Darker characters mean more allowed pairs. Beyond EXACT_LENGTH positions, a character only says whether
    all, some or none of its pairs are allowed.
    """
    size = -(-length // columns)
    starts = np.arange(0, length, size)
    if length <= EXACT_LENGTH:
        positions = np.arange(length)
        allowed = np.broadcast_to(pattern(positions[:, None], positions[None]), (length, length)).astype(np.int64)
        counts = np.add.reduceat(np.add.reduceat(allowed, starts, axis=0), starts, axis=1)
        sizes = np.diff(np.append(starts, length))
        share = counts / (sizes[:, None] * sizes[None])
    else:
        shades = tile_shades(tile_table(pattern, np.arange(length), np.arange(length), size))
        share = np.choose(shades, [0.0, 0.0, 0.5, 1.0])
    level = np.where(share == 1, 4, np.ceil(np.minimum(share, 0.999) * 3)).astype(int)
    return '\n'.join(' '.join(CHARACTERS[one] for one in row) for row in level)


def describe_pattern_cost(pattern: Pattern, length: int, size: int) -> list[str]:
    """Returns lines of text with two counts: the query-key pairs that a pattern allows, and the tiles of `size`
    positions that it keeps.
    """
    share, is_exact = pair_density(pattern, length)
    kind = '' if is_exact else f' (measured on {SAMPLED_ROWS} queries)'
    lines = [f'pairs allowed: {share:.3%} of {length} x {length}, {share * length:.1f} keys a query{kind}']
    parts = split_into_disjoint_patterns(pattern)
    tables = [
        tile_table(part, positions, positions, size, order)
        for part, order in parts
        for positions in [listed_positions(length, order)]
    ]
    kept, whole = sum(len(table.keys) for table in tables), sum(int(table.is_whole.sum()) for table in tables)
    tiles = tables[0].query_tiles * tables[0].key_tiles
    lines.append(f'tiles of {size} kept: {kept} of {tiles} ({kept / tiles:.3%}), {whole} of them need no mask')
    for number, (table, (_, order)) in enumerate(zip(tables, parts, strict=True), 1):
        by = 'in natural order' if order == 1 else f'by residue modulo {order}'
        lines.append(f'pass {number} of {len(parts)}: {len(table.keys)} tiles, positions {by}')
    return lines


def pair_density(pattern: Pattern, length: int) -> tuple[float, bool]:
    """Returns the share of query-key pairs that a pattern allows, and whether this share is exact; for long rows it is
    estimated from sampled queries.
    """
    is_exact = length <= EXACT_LENGTH
    queries = np.arange(length)
    if not is_exact:
        queries = np.sort(np.random.default_rng(0).choice(length, SAMPLED_ROWS, replace=False))
    keys = np.arange(length)[None]
    total = sum(
        int(np.broadcast_to(pattern(rows[:, None], keys), (len(rows), length)).sum())
        for rows in np.array_split(queries, -(-len(queries) // 64))
    )
    return total / (len(queries) * length), is_exact
