"""The patterns: full, causal, windows, blocks, strides, summaries, global tokens and random tiles.

`pattern.py` says what a pattern is and how they combine.
"""

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from efficient_attention.attention.patterns.pattern import Pattern, Ranges, Reach, SomeAndAll
from efficient_attention.errors import InputError

LARGEST = 2**31 - 1  # positions are int32 where JAX computes them
MOST_TILES = 2**13  # that `ListedTiles` numbers: its table has a byte for each pair of them


@dataclasses.dataclass(frozen=True)
class Full(Pattern):
    """Every query reads every key."""

    def __call__(self, query: Any, key: Any) -> Any:
        return (query - key) == (query - key)

    def tiles(self, query: Ranges, key: Ranges) -> SomeAndAll:
        """Always all."""
        every = (query.low == query.low) & (key.low == key.low)
        return every, every

    @property
    def compares_positions(self) -> bool:
        """False: every pair is allowed, wherever it is."""
        return False

    @property
    def goes_by_distance(self) -> bool:
        """True: the distance of query and key decides alone."""
        return True

    @property
    def is_band(self) -> bool:
        """Of all distances."""
        return True


@dataclasses.dataclass(frozen=True)
class Causal(Pattern):
    """A query reads itself and what comes before it: k <= q."""

    def __call__(self, query: Any, key: Any) -> Any:
        return key <= query

    def tiles(self, query: Ranges, key: Ranges) -> SomeAndAll:
        """By the nearest and the farthest pair."""
        return key.low <= query.high, key.high <= query.low

    @property
    def reach(self) -> Reach:
        """Back without bound, never ahead."""
        return Reach(math.inf, 0)

    @property
    def goes_by_distance(self) -> bool:
        """True: the distance of query and key decides alone."""
        return True

    @property
    def is_band(self) -> bool:
        """Of all distances from 0 on."""
        return True


@dataclasses.dataclass(frozen=True)
class Prefix(Pattern):
    """The first `count` positions read one another, later ones all up to themselves (Raffel et al. 2019, T5)."""

    count: int

    def __post_init__(self) -> None:
        require_at_least(1, self, count=self.count)

    def __call__(self, query: Any, key: Any) -> Any:
        return (key <= query) | (key < self.count)

    def tiles(self, query: Ranges, key: Ranges) -> SomeAndAll:
        """As of `Causal`, or by the end of the prefix."""
        return (key.low <= query.high) | (key.low < self.count), (key.high <= query.low) | (key.high < self.count)


@dataclasses.dataclass(frozen=True)
class Window(Pattern):
    """Keys at most `radius` steps of `dilation` positions away on both sides: 2 radius + 1; `& Causal()` for one side.

    Source: Beltagy et al. 2020, arXiv 2004.05150 (Longformer), section 3.1; its released code's window is this radius.
    """

    radius: int
    dilation: int = 1

    def __post_init__(self) -> None:
        require_at_least(0, self, radius=self.radius)
        require_at_least(1, self, dilation=self.dilation)
        require_at_least(0, self, reach=self.radius * self.dilation)

    def __call__(self, query: Any, key: Any) -> Any:
        distance = abs(query - key)
        near = distance <= self.radius * self.dilation
        return near if self.dilation == 1 else near & (distance % self.dilation == 0)

    def tiles(self, query: Ranges, key: Ranges) -> SomeAndAll:
        """By the nearest and the farthest pair, and where dilated by the residues."""
        reach = self.radius * self.dilation
        nearest = np.maximum(np.maximum(query.low - key.high, key.low - query.high), 0)
        farthest = np.maximum(query.high - key.low, key.high - query.low)
        some, every = multiples(self.dilation, query, key)
        return some & (nearest <= reach), every & (farthest <= reach)

    @property
    def order(self) -> int:
        """Dilated windows are dense among positions of one residue."""
        return self.dilation

    @property
    def reach(self) -> Reach:
        """Its radius in positions."""
        return Reach(self.radius * self.dilation, self.radius * self.dilation)

    @property
    def goes_by_distance(self) -> bool:
        """True: the distance of query and key decides alone."""
        return True

    @property
    def is_band(self) -> bool:
        """Where it has no gaps."""
        return self.dilation == 1


@dataclasses.dataclass(frozen=True)
class Block(Pattern):
    """Keys of the query's own block of `size` positions, of `back` blocks before it and `ahead` after it.

    Source: blockwise attention, Qiu et al. 2019, arXiv 1911.02972; with neighbours, Zaheer et al. 2020 (BigBird).
    """

    size: int
    back: int = 0
    ahead: int = 0

    def __post_init__(self) -> None:
        require_at_least(1, self, size=self.size)
        require_at_least(0, self, back=self.back, ahead=self.ahead)

    def __call__(self, query: Any, key: Any) -> Any:
        blocks = key // self.size - query // self.size
        return (blocks >= -self.back) & (blocks <= self.ahead)

    def tiles(self, query: Ranges, key: Ranges) -> SomeAndAll:
        """By the lowest and highest difference of block numbers."""
        lowest = key.low // self.size - query.high // self.size
        highest = key.high // self.size - query.low // self.size
        some = (highest >= -self.back) & (lowest <= self.ahead)
        return some, (lowest >= -self.back) & (highest <= self.ahead)

    @property
    def reach(self) -> Reach:
        """From the last position of a block to the first that it reads, and the other way round."""
        return Reach((self.back + 1) * self.size - 1, (self.ahead + 1) * self.size - 1)


@dataclasses.dataclass(frozen=True)
class Strided(Pattern):
    """Keys whose distance to the query is a multiple of `stride`, on both sides.

    Source: Child et al. 2019, arXiv 1904.10509 (Sparse Transformer), section 4.3, its second strided head.
    """

    stride: int

    def __post_init__(self) -> None:
        require_at_least(1, self, stride=self.stride)

    def __call__(self, query: Any, key: Any) -> Any:
        return (query - key) % self.stride == 0

    def tiles(self, query: Ranges, key: Ranges) -> SomeAndAll:
        """By residues where positions are listed by them, else by the range of differences."""
        return multiples(self.stride, query, key)

    @property
    def order(self) -> int:
        """Positions of one residue form blocks."""
        return self.stride

    @property
    def goes_by_distance(self) -> bool:
        """True: the distance of query and key decides alone."""
        return True


@dataclasses.dataclass(frozen=True)
class Summary(Pattern):
    """Keys among the last `width` positions of any block of `block` positions.

    Source: Child et al. 2019, arXiv 1904.10509, section 4.3, the summary columns of the fixed pattern.
    """

    block: int
    width: int

    def __post_init__(self) -> None:
        require_at_least(1, self, block=self.block, width=self.width)
        if self.width > self.block:
            raise InputError(f'{self}: width must be at most block')

    def __call__(self, query: Any, key: Any) -> Any:
        return (key % self.block >= self.block - self.width) & (query == query)

    def tiles(self, query: Ranges, key: Ranges) -> SomeAndAll:
        """By residues where positions are listed by them, else by the number of summary positions up to each end."""
        if key.order == self.block:
            first, any_query = self.block - self.width, query.low == query.low
            return any_query & (key.residue_high >= first), any_query & (key.residue_low >= first)
        count = self.count_up_to(key.high) - self.count_up_to(key.low - 1)
        any_query = query.low == query.low
        return any_query & (count > 0), any_query & (count == key.high - key.low + 1)

    def count_up_to(self, position: np.ndarray) -> np.ndarray:
        """How many positions 0 ... `position` are summary positions."""
        blocks, rest = np.divmod(position + 1, self.block)
        return blocks * self.width + np.maximum(rest - (self.block - self.width), 0)

    @property
    def order(self) -> int:
        """Summary positions of one residue lie together, where in natural order each block's tile holds a few."""
        return self.block


@dataclasses.dataclass(frozen=True)
class GlobalTokens(Pattern):
    """The first `count` positions and the final `last` read all and are read by all.

    Sources: Longformer (arXiv 2004.05150, section 3.1) and BigBird (arXiv 2007.14062, section 2).
    """

    count: int
    last: int = 0
    keys: int = 0  # number of keys, filled in by `for_keys`; only `last` needs it

    def __post_init__(self) -> None:
        require_at_least(0, self, count=self.count, last=self.last)
        if self.count + self.last < 1:
            raise InputError(f'{self}: count or last must be at least 1')

    def __call__(self, query: Any, key: Any) -> Any:
        start = self.last_start()
        return (query < self.count) | (key < self.count) | (query >= start) | (key >= start)

    def tiles(self, query: Ranges, key: Ranges) -> SomeAndAll:
        """By the ends of both ranges."""
        start = self.last_start()
        some = (query.low < self.count) | (key.low < self.count) | (query.high >= start) | (key.high >= start)
        every = (query.high < self.count) | (key.high < self.count) | (query.low >= start) | (key.low >= start)
        return some, every

    def last_start(self) -> int:
        """The first of the final global positions."""
        if self.last and not self.keys:
            raise InputError(f'{self}: final global tokens need the number of keys; call for_keys first')
        return self.keys - self.last if self.last else np.iinfo(np.int32).max

    def for_keys(self, length: int) -> 'GlobalTokens':
        """Final tokens are counted from the number of keys."""
        return dataclasses.replace(self, keys=length) if self.last else self


@dataclasses.dataclass(frozen=True)
class RandomTiles(Pattern):
    """Each tile of `size` queries reads `per_row` tiles of keys, drawn once from (seed, layer, head, tile).

    Drawn without replacement among all tiles but those within `near` of the query's own tile and the `ends` first
    and last ones: with near = ends = 1 BigBird's random blocks, which its window and its global blocks never hold.
    A query beyond the keys takes the row of its tile number modulo the number of key tiles. Unlike BigBird's code,
    which at some lengths draws from the first 1,024 tokens alone, all tiles are eligible.
    Source: Zaheer et al. 2020, arXiv 2007.14062, section 2.
    """

    per_row: int
    size: int
    seed: int = 0
    near: int = -1
    ends: int = 0
    layer: int = 0
    head: int = 0
    keys: int = 0  # number of keys, filled in by `for_keys`

    def __post_init__(self) -> None:
        require_at_least(1, self, per_row=self.per_row, size=self.size)
        require_at_least(0, self, ends=self.ends, seed=self.seed)
        require_at_least(-1, self, near=self.near)

    def __call__(self, query: Any, key: Any) -> Any:
        chosen = self.chosen()
        rows, columns = query // self.size % len(chosen), key // self.size
        if isinstance(query, np.ndarray) and isinstance(key, np.ndarray):
            return chosen[rows, np.minimum(columns, len(chosen) - 1)] & (columns < len(chosen))
        import jax.numpy as jnp  # NumPy users of this file need no JAX

        return jnp.asarray(chosen)[rows, jnp.minimum(columns, len(chosen) - 1)] & (columns < len(chosen))

    def tiles(self, query: Ranges, key: Ranges) -> SomeAndAll:
        """By how many chosen tiles lie in the rectangle between both ranges."""
        count = len(self.chosen())
        rows = np.arange(int(query.high.max()) // self.size + 1)
        padded = np.zeros((len(rows) + 1, int(key.high.max()) // self.size + 2), np.int64)
        columns = min(count, padded.shape[1] - 1)
        padded[1:, 1 : columns + 1] = self.chosen()[rows % count, :columns]
        sums = padded.cumsum(0).cumsum(1)
        top, bottom = query.low // self.size, query.high // self.size + 1
        left, right = key.low // self.size, key.high // self.size + 1
        found = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
        return found > 0, found == (bottom - top) * (right - left)

    def chosen(self) -> np.ndarray:
        """Booleans [query tiles, key tiles]."""
        if not self.keys:
            raise InputError(f'{self}: random tiles need the number of keys; call for_keys first')
        return _draw_tiles(self)

    def for_keys(self, length: int) -> 'RandomTiles':
        """Tiles are drawn among those of the keys."""
        return dataclasses.replace(self, keys=length)

    def for_head(self, head: int, heads: int) -> 'RandomTiles':  # noqa: ARG002  every head draws for itself
        """Each head draws its own."""
        return dataclasses.replace(self, head=head)

    def for_layer(self, layer: int) -> 'RandomTiles':
        """Each layer draws its own."""
        return dataclasses.replace(self, layer=layer)


@functools.lru_cache(maxsize=256)
def _draw_tiles(pattern: RandomTiles) -> np.ndarray:
    count = -(-pattern.keys // pattern.size)
    numbers = np.arange(count)
    generator = np.random.default_rng([pattern.seed, pattern.layer, pattern.head])
    scores = generator.random((count, count))
    is_end = (numbers < pattern.ends) | (numbers >= count - pattern.ends)
    scores[(abs(numbers[:, None] - numbers) <= pattern.near) | is_end] = 2.0  # drawn last, then not at all
    drawn = np.argsort(scores, axis=1, kind='stable')[:, : pattern.per_row]
    chosen = np.zeros((count, count), bool)
    np.put_along_axis(chosen, drawn, np.take_along_axis(scores, drawn, 1) < 2.0, 1)
    return chosen


@dataclasses.dataclass(frozen=True)
class ListedTiles(Pattern):
    """The pairs of tiles of `size` positions that `pairs` lists: query tile, key tile, query tile, key tile, ...

    For a plan that was drawn elsewhere, such as the random blocks of a BigBird checkpoint's training run; with
    `PerHead` each head has its own.
    """

    size: int
    pairs: tuple[int, ...]

    def __post_init__(self) -> None:
        require_at_least(1, self, size=self.size)
        for number in self.pairs:
            require_at_least(0, self, tile=number)
        if not self.pairs or len(self.pairs) % 2:
            raise InputError(f'ListedTiles: {len(self.pairs)} tile numbers; they must be pairs of query and key tile')
        if max(self.pairs) >= MOST_TILES:
            raise InputError(f'ListedTiles: tile {max(self.pairs)}; it must be below {MOST_TILES}')

    def __call__(self, query: Any, key: Any) -> Any:
        table = _listed_table(self)
        rows, columns = query // self.size, key // self.size
        if isinstance(query, np.ndarray) and isinstance(key, np.ndarray):
            return table[np.minimum(rows, len(table) - 1), np.minimum(columns, table.shape[1] - 1)]
        import jax.numpy as jnp  # NumPy users of this file need no JAX

        return jnp.asarray(table)[jnp.minimum(rows, len(table) - 1), jnp.minimum(columns, table.shape[1] - 1)]

    def tiles(self, query: Ranges, key: Ranges) -> SomeAndAll:
        """By how many listed tiles lie in the rectangle between both ranges."""
        table = _listed_table(self)
        sums = np.pad(table.astype(np.int64), ((1, 0), (1, 0))).cumsum(0).cumsum(1)
        ends = [
            (np.minimum(ranges.low // self.size, limit), np.minimum(ranges.high // self.size + 1, limit))
            for ranges, limit in zip((query, key), table.shape, strict=True)
        ]
        (top, bottom), (left, right) = ends
        found = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
        rows = query.high // self.size + 1 - query.low // self.size
        return found > 0, found == rows * (key.high // self.size + 1 - key.low // self.size)


@functools.lru_cache(maxsize=1024)
def _listed_table(pattern: ListedTiles) -> np.ndarray:
    """Booleans [query tiles, key tiles], with an empty last row and column for all tiles beyond."""
    pairs = np.asarray(pattern.pairs).reshape(-1, 2)
    table = np.zeros(pairs.max(axis=0) + 2, bool)
    table[pairs[:, 0], pairs[:, 1]] = True
    return table


def multiples(step: int, query: Ranges, key: Ranges) -> SomeAndAll:
    """Whether some and whether every difference between the ranges is a multiple of `step`."""
    if step == 1:
        return Full().tiles(query, key)
    if query.order == key.order == step:
        some = (query.residue_low <= key.residue_high) & (key.residue_low <= query.residue_high)
        is_one = (query.residue_low == query.residue_high) & (key.residue_low == key.residue_high)
        return some, some & is_one
    some = (query.high - key.low) // step >= -((key.high - query.low) // step)
    return some, some & (query.low == query.high) & (key.low == key.high)


def require_at_least(minimum: int, pattern: Pattern, **sizes: int) -> None:
    """Raises an InputError that names the pattern and an argument that is no whole number from `minimum` on."""
    for name, size in sizes.items():
        what = f'{type(pattern).__name__}: {name} is {size!r}; it must be'
        if not is_whole_number(size):
            raise InputError(f'{what} a whole number')
        if not minimum <= size <= LARGEST:
            raise InputError(f'{what} at {f"least {minimum}" if size < minimum else f"most {LARGEST}"}')


def is_whole_number(value: object) -> bool:
    """Whether `value` is an integer of Python or NumPy, and no truth value."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
