"""Lists the tiles that the kernels of block-sparse attention visit: built on the host from a pattern, shortened on the
device by the segments of each row.

A kernel computes one tile per program: a tile of queries, which visits tiles of keys, or the other way round. Visited
tiles whose pairs are all allowed come first, because they need no mask.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from efficient_attention.attention.mechanism import raise_unsupported
from efficient_attention.attention.patterns import Pattern
from efficient_attention.attention.patterns.tile_table import position_ranges
from efficient_attention.attention.request import QueryKeyPair

BLOCKS = (32, 16)  # sizes of the blocks of positions in which a looked-up pattern may be constant
WHOLE, PARTIAL, EMPTY = 0, 1, 2  # kinds of a visited tile: all, some or no pairs are allowed


class TileSizes(NamedTuple):
    """The numbers of queries and of keys in a tile of one kernel, and whether it computes tiles of keys."""

    queries: int
    keys: int
    by_key: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class StaticLists:
    """The visited tiles of all computed tiles, for N layers and P heads, or for one of either if they do not differ.

    A computed tile has consecutive entries. Lists of layers and heads are padded to equal lengths, with entries that
    belong to the row T, which no program computes.

    Args:
        programs_NPT4: for each program the computed tile, its first entry, its number of whole tiles, and its number of
            tiles; programs with the longest lists come first.
        rows_NPE: computed tile of each entry.
        tiles_NPE: visited tile of each entry. If a tile of keys is computed, the tiles of the h query heads that share
            the keys count on: head i's tile j is i times the number of tiles plus j.
        is_whole_NPE: whether the pattern allows all pairs, and all keys exist.
        words_WNPE: for each looked-up pattern the blocks of the tile that it allows, as bits.
        visited: number of visited tiles of one query head.
        block: number of positions in the side of a block.
    """

    programs_NPT4: np.ndarray
    rows_NPE: np.ndarray
    tiles_NPE: np.ndarray
    is_whole_NPE: np.ndarray
    words_WNPE: np.ndarray
    visited: int
    block: int


class TileLists(NamedTuple):
    """The lists that a kernel reads, for each batch row or for all, and for each head or for all; see `StaticLists`."""

    programs_bPT4: Array
    tiles_bPE: Array
    words_WbPE: tuple[Array, ...]


def looked_up_patterns(pattern: Pattern) -> tuple[Pattern, ...]:
    """Returns the parts of a pattern that read a table, which a kernel cannot; they become bits of `StaticLists`."""
    if not pattern.parts():
        return (pattern,) if pattern.reads_table else ()
    return tuple(dict.fromkeys(found for part in pattern.parts() for found in looked_up_patterns(part)))


@functools.lru_cache(maxsize=64)
def make_lists(
    by_layer: tuple[tuple[Pattern, ...], ...],
    positions: tuple[bytes | int, bytes | int],
    order: int,
    sizes: TileSizes,
    group: int,
) -> StaticLists:
    """Returns the lists of visited tiles.

    Args:
        by_layer: for each layer one pattern for all heads, or one for each.
        positions: int32 positions of queries and keys as bytes, sorted as by `order_by_residue`; only their numbers if
            positions are known only while the program runs. All tiles are then listed.
        order: the modulus by which the positions are sorted.
        sizes: of the tiles.
        group: number of query heads that share a key head; only used if tiles of keys are computed.

    Raises:
        NotImplementedError: a looked-up pattern is not constant in blocks of 16 positions.
    """
    block = block_size(by_layer, positions, order)
    tables = [[cover(pattern, positions, order, sizes, block) for pattern in heads] for heads in by_layer]
    visited = tables[0][0].kinds.shape[0 if sizes.by_key else 1]
    if sizes.by_key:
        tables = [join_heads([table.transposed() for table in heads], group) for heads in tables]
    return stack_lists(tables, visited, block)


class Coverage(NamedTuple):
    """The kinds of all tiles [computed, visited], and the words of looked-up patterns [W, computed, visited]."""

    kinds: np.ndarray
    words: np.ndarray

    def transposed(self) -> 'Coverage':
        """Returns the coverage with computed and visited tiles exchanged."""
        return Coverage(self.kinds.T, self.words.swapaxes(1, 2))


def block_size(
    by_layer: tuple[tuple[Pattern, ...], ...], positions: tuple[bytes | int, bytes | int], order: int
) -> int:
    """Returns the largest size in `BLOCKS` of blocks in which all looked-up patterns are constant."""
    looked_up = [leaf for heads in by_layer for pattern in heads for leaf in looked_up_patterns(pattern)]
    is_static = not any(isinstance(one, int) for one in positions)
    lack = f'tables of tiles that are not blocks of {BLOCKS[-1]} positions'
    for size in BLOCKS if is_static else ():
        covered = (tile_coverage(leaf, positions, order, TileSizes(size, size)) for leaf in looked_up)
        if all(np.array_equal(some, every) for some, every in covered):
            return size
    raise_unsupported('mosaic', {lack: bool(looked_up)})
    return BLOCKS[0]


def tile_coverage(
    pattern: Pattern, positions: tuple[bytes | int, bytes | int], order: int, sizes: TileSizes
) -> tuple[np.ndarray, np.ndarray]:
    """Returns for each tile of queries and keys whether some pair, and whether every pair, is allowed."""
    counts = [one if isinstance(one, int) else len(one) // 4 for one in positions]
    shape = -(-counts[0] // sizes.queries), -(-counts[1] // sizes.keys)
    if any(isinstance(one, int) for one in positions):
        return np.ones(shape, bool), np.full(shape, not pattern.uses_positions)
    queries, keys = (np.frombuffer(one, np.int32) for one in positions)  # type: ignore[arg-type]
    some, every = pattern.tile_coverage(
        position_ranges(queries, sizes.queries, order, 1), position_ranges(keys, sizes.keys, order, 0)
    )
    return np.broadcast_to(some, shape), np.broadcast_to(every, shape)


def cover(
    pattern: Pattern, positions: tuple[bytes | int, bytes | int], order: int, sizes: TileSizes, block: int
) -> Coverage:
    """Returns the kinds of all tiles of one head, and the words of its looked-up patterns."""
    some, every = tile_coverage(pattern, positions, order, sizes)
    kinds = np.where(some, np.where(every, WHOLE, PARTIAL), EMPTY)
    counts = [one if isinstance(one, int) else len(one) // 4 for one in positions]
    if counts[1] % sizes.keys:
        kinds[:, -1] = np.where(kinds[:, -1] == WHOLE, PARTIAL, kinds[:, -1])
    # Rows are padded to whole tiles of the larger size, so there may be one more of the smaller tiles.
    larger = max(sizes.queries, sizes.keys)
    more = [
        (0, -(-count // larger) * (larger // size) - tiles)
        for count, size, tiles in zip(counts, sizes[:2], kinds.shape, strict=True)
    ]
    kinds = np.pad(kinds, more, constant_values=EMPTY)
    words = []
    for leaf in looked_up_patterns(pattern):
        allowed, _ = tile_coverage(leaf, positions, order, TileSizes(block, block))
        rows, columns = sizes.queries // block, sizes.keys // block
        lack = f'tables of blocks of {block} positions in tiles of {sizes.queries} x {sizes.keys}'
        raise_unsupported('mosaic', {lack: rows * columns > 32})  # a word has 32 bits
        padded = np.zeros((kinds.shape[0] * rows, kinds.shape[1] * columns), bool)
        padded[: allowed.shape[0], : allowed.shape[1]] = allowed
        by_tile = padded.reshape(kinds.shape[0], rows, kinds.shape[1], columns).swapaxes(1, 2)
        bits = by_tile.reshape(*kinds.shape, rows * columns)
        words.append((bits * (1 << np.arange(rows * columns, dtype=np.int64))).sum(-1).astype(np.uint32))
    return Coverage(kinds, np.array(words, np.uint32).view(np.int32).reshape(len(words), *kinds.shape))


def join_heads(tables: list[Coverage], group: int) -> list[Coverage]:
    """Returns one coverage per key head, or one for all: that of its `group` query heads side by side."""
    if len(tables) == 1:
        tables = tables * group
    return [
        Coverage(*(np.concatenate(parts, axis=-1) for parts in zip(*tables[first : first + group], strict=True)))
        for first in range(0, len(tables), group)
    ]


def stack_lists(tables: list[list[Coverage]], visited: int, block: int) -> StaticLists:
    """Returns the lists of all layers and heads, padded to equal lengths."""
    lists = [list_entries(table) for heads in tables for table in heads]
    longest = max(1, *(len(rows) for _, rows, *_ in lists))
    computed = len(tables[0][0].kinds)

    def stacked(place: int, fill: int) -> np.ndarray:
        padded = [np.pad(one[place], (0, longest - len(one[1])), constant_values=fill) for one in lists]
        return np.stack(padded).reshape(len(tables), -1, longest)

    rows, tiles, is_whole = (stacked(place, fill) for place, fill in ((1, computed), (2, 0), (3, 0)))
    words = [stacked(place, 0) for place in range(4, len(lists[0]))]
    return StaticLists(
        np.stack([programs for programs, *_ in lists]).reshape(len(tables), -1, computed, 4).astype(np.int32),
        rows.astype(np.int32),
        tiles.astype(np.int32),
        is_whole.astype(bool),
        np.array(words, np.int32).reshape(len(words), *rows.shape),
        visited,
        block,
    )


def list_entries(table: Coverage) -> list[np.ndarray]:
    """Returns the programs [T, 4] of one head, then for each entry its computed tile, its visited tile, whether it is
    whole, and its words.
    """
    rows, tiles = np.nonzero(table.kinds != EMPTY)
    kinds = table.kinds[rows, tiles]
    by_kind = np.lexsort((tiles, kinds, rows))
    rows, tiles, is_whole = rows[by_kind], tiles[by_kind], kinds[by_kind] == WHOLE
    computed = len(table.kinds)
    counts, whole = np.bincount(rows, minlength=computed), np.bincount(rows[is_whole], minlength=computed)
    programs = np.stack([np.arange(computed), np.cumsum(counts) - counts, whole, counts], axis=1)
    return [programs[np.argsort(-counts, kind='stable')], rows, tiles, is_whole, *table.words[:, rows, tiles]]


def choose_lists(
    lists: StaticLists, layer: Int[Array, ''] | None, segments: QueryKeyPair | None, sizes: TileSizes
) -> TileLists:
    """Returns the lists that a kernel reads for one layer, without the tiles whose segments have nothing in common.

    Args:
        lists: the pattern's lists.
        layer: index of the layer among those of `lists`; None if there is only one.
        segments: int32 segments [B, L] and [B, M] in whole tiles, or None.
        sizes: of the tiles.
    """
    programs, rows, tiles, is_whole = (
        jnp.asarray(x)[0 if layer is None else layer]
        for x in (lists.programs_NPT4, lists.rows_NPE, lists.tiles_NPE, lists.is_whole_NPE)
    )
    words = tuple(jnp.asarray(x)[0 if layer is None else layer] for x in lists.words_WNPE)
    if segments is None:
        return TileLists(programs[None], tiles[None], tuple(word[None] for word in words))
    kinds = entry_kinds(rows, tiles % lists.visited, is_whole, segments, sizes)
    # Sorted by the computed tile, then by kind: the entries of a tile stay where they are, with empty ones last.
    operands = [rows[None] * 3 + kinds, kinds, *(jnp.broadcast_to(x[None], kinds.shape) for x in (tiles, *words))]
    _, kinds, tiles_BPE, *words_BPE = jax.lax.sort(operands, num_keys=1, is_stable=True)
    starts, ends = programs[..., 1], programs[..., 1] + programs[..., 3]
    whole, kept = (count_entries(kinds <= kind, starts, ends) for kind in (WHOLE, PARTIAL))
    first = (jnp.broadcast_to(programs[None, ..., column], kept.shape) for column in (0, 1))
    return TileLists(jnp.stack([*first, whole, kept], axis=-1), tiles_BPE, tuple(words_BPE))


def count_entries(is_counted_BPE: Array, starts_PT: Array, ends_PT: Array) -> Array:
    """Returns how many entries of each program are counted, int32 [B, P, T]."""
    before = jnp.pad(jnp.cumsum(is_counted_BPE, axis=-1, dtype=jnp.int32), ((0, 0), (0, 0), (1, 0)))
    after, up_to = (
        jnp.take_along_axis(before, jnp.broadcast_to(x[None], (len(before), *x.shape)), axis=-1)
        for x in (starts_PT, ends_PT)
    )
    return up_to - after


def entry_kinds(
    rows_PE: Array, visited_PE: Array, is_whole_PE: Array, segments: QueryKeyPair, sizes: TileSizes
) -> Array:
    """Returns the kind of each entry for each batch row, int32 [B, P, E].

    A tile is empty if its queries and keys have no segment number in common, judged by their lowest and highest. It
    stays whole only if all its tokens are of one segment.
    """
    ranges = [
        (x.reshape(len(x), -1, size).min(-1), x.reshape(len(x), -1, size).max(-1))
        for x, size in zip(segments, sizes[:2], strict=True)
    ]
    (low, high), (low_visited, high_visited) = ranges[::-1] if sizes.by_key else ranges
    is_padding_PE = rows_PE == low.shape[1]  # such entries only make the lists of heads equally long
    low, high = (x[:, jnp.where(is_padding_PE, 0, rows_PE)] for x in (low, high))
    low_visited, high_visited = (x[:, visited_PE] for x in (low_visited, high_visited))
    is_apart = (low > high_visited) | (high < low_visited) | is_padding_PE[None]
    is_one = (low == high) & (low_visited == high_visited) & (low == low_visited) & is_whole_PE[None]
    return jnp.where(is_apart, EMPTY, jnp.where(is_one, WHOLE, PARTIAL))
