"""Defines `RandomTiles`, a pattern in which each tile of queries reads a few randomly chosen tiles of keys, as in
BigBird.
"""

import dataclasses
import functools
from typing import Any

import numpy as np

from efficient_attention.attention.patterns.pattern import Pattern, PositionRanges, SomeAndAll, check_sizes
from efficient_attention.errors import InputError


@dataclasses.dataclass(frozen=True)
class RandomTiles(Pattern):
    """The pattern in which each tile of `size` queries reads `per_row` random tiles of keys,
    sampled once from (seed, layer, head, tile).

    Tiles are sampled without replacement, except those within `near` of the query's tile and the first and last `ends`
    tiles. With near = ends = 1 these are BigBird's random blocks, which never include its window and global blocks. A
    query beyond the keys uses the sample of its tile number modulo the number of key tiles. All tiles are eligible,
    unlike in BigBird's code, which at some lengths samples only from the first 1,024 tokens. Source: Zaheer et al.
    2020, arXiv 2007.14062, section 2.
    """

    per_row: int
    size: int
    seed: int = 0
    near: int = -1
    ends: int = 0
    layer: int | tuple[int, ...] = 0  # several layers: see `Pattern.for_layer`
    head: int = 0
    keys: int = 0  # number of keys, set by `for_key_count`

    def __post_init__(self) -> None:
        check_sizes(1, self, per_row=self.per_row, size=self.size)
        check_sizes(0, self, ends=self.ends, seed=self.seed)
        check_sizes(-1, self, near=self.near)

    def __call__(self, query: Any, key: Any) -> Any:
        chosen = self.chosen_key_tiles()
        rows, columns = query // self.size % len(chosen), key // self.size
        if isinstance(query, np.ndarray) and isinstance(key, np.ndarray):
            return chosen[rows, np.minimum(columns, len(chosen) - 1)] & (columns < len(chosen))
        import jax.numpy as jnp  # imported here so that NumPy users need no JAX

        return jnp.asarray(chosen)[rows, jnp.minimum(columns, len(chosen) - 1)] & (columns < len(chosen))

    def tile_coverage(self, query: PositionRanges, key: PositionRanges) -> SomeAndAll:
        """Returns two booleans for each pair of query and key ranges: whether some position pair is in a chosen tile,
        and whether every pair is.
        """
        count = len(self.chosen_key_tiles())
        rows = np.arange(int(query.high.max()) // self.size + 1)
        padded = np.zeros((len(rows) + 1, int(key.high.max()) // self.size + 2), np.int64)
        columns = min(count, padded.shape[1] - 1)
        padded[1:, 1 : columns + 1] = self.chosen_key_tiles()[rows % count, :columns]
        sums = padded.cumsum(0).cumsum(1)
        top, bottom = query.low // self.size, query.high // self.size + 1
        left, right = key.low // self.size, key.high // self.size + 1
        found = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
        return found > 0, found == (bottom - top) * (right - left)

    def chosen_key_tiles(self) -> np.ndarray:
        """Returns which key tiles each query tile reads, as booleans [query tiles, key tiles]."""
        if not self.keys:
            raise InputError(f'{self}: random tiles need the number of keys; call for_key_count first')
        if self.layers:
            raise InputError(f'{self}: random tiles need a single layer; call for_layer first')
        return _draw_tiles(self)

    def for_key_count(self, length: int) -> 'RandomTiles':
        """Returns the pattern for `length` keys; random tiles are sampled only among the tiles of these keys."""
        return dataclasses.replace(self, keys=length)

    def for_head(self, head: int, heads: int) -> 'RandomTiles':  # noqa: ARG002  each head has its own sample
        """Returns the pattern of head number `head`; each head has its own random sample."""
        return dataclasses.replace(self, head=head)

    def for_layer(self, layer: int | tuple[int, ...]) -> 'RandomTiles':
        """Returns the pattern of layer number `layer`; each layer has its own random sample."""
        return dataclasses.replace(self, layer=layer)

    @property
    def reads_table(self) -> bool:
        """True, because the chosen tiles are a table."""
        return True

    @property
    def layers(self) -> tuple[int, ...]:
        """The ascending layer numbers that `for_layer` got, if it got several; () for the pattern of a single layer."""
        return self.layer if isinstance(self.layer, tuple) else ()


@functools.lru_cache(maxsize=256)
def _draw_tiles(pattern: RandomTiles) -> np.ndarray:
    count = -(-pattern.keys // pattern.size)
    numbers = np.arange(count)
    generator = np.random.default_rng([pattern.seed, pattern.layer, pattern.head])
    scores = generator.random((count, count))
    is_end = (numbers < pattern.ends) | (numbers >= count - pattern.ends)
    # Excluded tiles get a score of 2, so that they sort last; the mask below leaves them out.
    scores[(abs(numbers[:, None] - numbers) <= pattern.near) | is_end] = 2.0
    drawn = np.argsort(scores, axis=1, kind='stable')[:, : pattern.per_row]
    chosen = np.zeros((count, count), bool)
    np.put_along_axis(chosen, drawn, np.take_along_axis(scores, drawn, 1) < 2.0, 1)
    return chosen
