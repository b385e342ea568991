"""The backend `splash`: softmax attention on TPUs by JAX's splash attention kernels, forward and backward.

The kernels compute one tile of scores after another, and skip tiles without any pair that the pattern allows. They
compare the segments of queries and keys. `PatternMask` gives the kernels the mask of one tile at a time, so no [L, L]
array is ever built.

Rows are padded to whole tiles. Padded keys get segment 0, like all padding, so no token reads them. The results of
padded queries are cut off. For a query without keys, the kernels return a mean of values that the query may not read.
The backend replaces this result by zeros.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import PartitionSpec
from jaxtyping import Shaped

from efficient_attention.attention.device_mesh import ACTIVATIONS, device_mesh, has_divisible_heads, partition
from efficient_attention.attention.devices import chip_name, device_tuning
from efficient_attention.attention.logits.definition import request_pattern
from efficient_attention.attention.mechanism import raise_unsupported
from efficient_attention.attention.patterns import Pattern, head_patterns
from efficient_attention.attention.patterns.tile_table import split_into_disjoint_patterns, tile_table
from efficient_attention.attention.request import QueryKeyPair, Request, without_padding
from efficient_attention.errors import require

LANES = 128  # tile sizes are multiples of a TPU's vector width
# For each TPU, the largest tile with which calls with segments compile, forward and backward, for heads of every width
# up to `WIDEST_HEAD`. With tiles of 1,024, the backward pass needs 16.03 MiB of the 16 MiB of vector memory that a
# kernel gets on TPU v5e (libtpu 0.0.42).
LARGEST_TILES = {'TPU v6 lite': 1024}
LARGEST_OTHER_TILE = 512
WIDEST_HEAD = 256
# Largest total size of the different tile masks of all heads. Masks are constants of the program, and take many times
# their size in it: the 16 MiB of masks of `bigbird(64)` at 4,096 positions took 490 MiB (libtpu 0.0.42, TPU v5e).
MOST_MASK_BYTES = 2**22
# Largest number of tiles in a kernel's list of the tiles that it computes. The list is in the scalar memory of a TPU
# core, with up to 5 bytes for each tile. This memory has 1 MiB in all chips up to TPU v6e.
MOST_LISTED_TILES = 2**17


@dataclasses.dataclass(frozen=True)
class PatternMask(masks.Mask):
    """The mask of one head's pattern over rows that are padded to whole tiles of `tile` x `tile` positions.

    A padded position gets the mask of the last real position.
    """

    pattern: Pattern
    queries: int
    keys: int
    tile: int

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of queries and keys, padded to whole tiles."""
        return round_up(self.queries, self.tile), round_up(self.keys, self.tile)

    def __getitem__(self, ranges: Any) -> np.ndarray:
        """Returns the mask of one tile, bool [tile, tile], for its slices of queries and keys."""
        row, column = (one.start // self.tile for one in ranges)
        kind = self.kinds[row, column]
        return self.partial_tiles[row, column] if kind == 1 else constant_tile(self.tile, bool(kind))

    @functools.cached_property
    def positions(self) -> tuple[np.ndarray, np.ndarray]:
        """The positions of queries and of keys; each padded position repeats the last real one."""
        queries, keys = (
            np.minimum(np.arange(size), real - 1)
            for size, real in zip(self.shape, (self.queries, self.keys), strict=True)
        )
        return queries, keys

    @functools.cached_property
    def kinds(self) -> np.ndarray:
        """The kind of each tile, int8 [query tiles, key tiles]: 0 = no pair is allowed, 1 = some pairs, 2 = all."""
        table = tile_table(self.pattern, *self.positions, self.tile)
        kinds = np.zeros((table.query_tiles, table.key_tiles), np.int8)
        kinds[np.repeat(np.arange(table.query_tiles), table.key_tile_counts), table.keys] = 1 + table.is_whole
        return kinds

    @functools.cached_property
    def partial_tiles(self) -> dict[tuple[int, int], np.ndarray]:
        """The mask of each tile of kind 1, by the row and column of the tile; equal masks share one array.

        Raises:
            NotImplementedError: this head's masks take more than `MOST_MASK_BYTES`.
        """
        found: dict[tuple[int, int], np.ndarray] = {}
        different: dict[bytes, np.ndarray] = {}
        queries_TS, keys_TS = (x.reshape(-1, self.tile) for x in self.positions)
        for row, column in np.argwhere(self.kinds == 1).tolist():
            allowed_SS = np.asarray(self.pattern(queries_TS[row][:, None], keys_TS[column][None]))
            found[row, column] = different.setdefault(np.packbits(allowed_SS).tobytes(), allowed_SS)
            check_mask_count(len(different), self.tile)
        return found


@functools.cache
def constant_tile(size: int, value: bool) -> np.ndarray:
    """Returns the mask of a tile in which every pair has the same value."""
    return np.full((size, size), value)


def round_up(size: int, multiple: int) -> int:
    """Returns the smallest multiple of `multiple` that is at least `size`."""
    return -(-size // multiple) * multiple


def compute_attention(request: Request) -> tuple[Array, None]:
    """Returns the output of softmax attention that the splash attention kernels compute on a TPU, from bfloat16
    inputs.
    """
    check_supported(request)
    return attend_tiles(request), None


def attend_tiles(request: Request, *, is_interpreted: bool = False) -> Array:
    """Returns the attention output of the kernels for a request that `check_supported` accepts.

    With `is_interpreted`, JAX emulates the kernels on any device; tests compare the result with the definition.
    """
    (_, queries, heads, width), keys = request.query.shape, request.key.shape[1]
    tile = tile_size(max(queries, keys))
    patterns = head_patterns(request_pattern(request), heads)
    kernel = make_kernel(tuple(patterns), heads, queries, keys, tile, is_interpreted)
    query = (request.query.astype(jnp.float32) / math.sqrt(width)).astype(request.query.dtype)
    padded = [pad_rows(x, tile).swapaxes(1, 2) for x in (query, request.key, request.value)]
    segments = padded_segments(request, tile)
    out_BHLK = map_over_rows_and_heads(kernel, padded, segments)
    out_BLHK = out_BHLK.swapaxes(1, 2)[:, :queries]
    if request.segments is None:
        return out_BLHK
    return without_padding(out_BLHK, query_segments_with_keys(request.segments))


def tile_size(length: int) -> int:
    """Returns the number of positions of a tile: `DeviceTuning.splash_tile`, or less if the rows are shorter than this.

    Raises:
        InputError: the device's tile size is not a multiple of 128, or too large for this machine's TPU.
    """
    size, chip = device_tuning().splash_tile, chip_name()
    require(size % LANES == 0, 'device constant splash_tile', size, f'a multiple of {LANES}, such as 512')
    largest = LARGEST_TILES.get(chip, LARGEST_OTHER_TILE)
    require(size <= largest, 'device constant splash_tile', size, f'at most {largest} on a {chip}')
    return min(size, round_up(length, LANES))


@functools.lru_cache(maxsize=64)
def make_kernel(
    patterns: tuple[Pattern, ...], heads: int, queries: int, keys: int, tile: int, is_interpreted: bool
) -> Any:
    """Returns the kernel for queries [H, L, K], keys and values [G, M, K] and segments;
    `patterns` has one pattern for each head, or one for all heads.
    """
    one_per_head = [PatternMask(pattern, queries, keys, tile) for pattern in patterns] * (heads // len(patterns))
    check_tile_lists(one_per_head)
    check_mask_bytes(one_per_head)
    sizes = kernels.BlockSizes(
        block_q=tile, block_kv=tile, block_q_dkv=tile, block_kv_dkv=tile, block_q_dq=tile, block_kv_dq=tile
    )
    # The kernel's lists must be arrays, not traced values, because `make_kernel` keeps its results.
    with jax.ensure_compile_time_eval():
        kernel = kernels.make_splash_mha(
            masks.MultiHeadMask(one_per_head),
            block_sizes=sizes,
            head_shards=1,
            q_seq_shards=1,
            interpret=is_interpreted,
        )
        return jax.tree.map(np.asarray, kernel)  # The cache of this function holds no memory of a device.


def check_tile_lists(one_per_head: list[PatternMask]) -> None:
    """Raises a NotImplementedError if the kernels' lists of tiles are too long for a TPU's scalar memory.

    If all heads have one pattern, every query tile gets as many entries as the query tile that reads the
    most key tiles. The backward pass has the same kind of list for each tile of keys. If
    heads differ, a list has an entry for every tile of every head.
    """
    kinds, masks_count = one_per_head[0].kinds, len(set(one_per_head))
    listed = len(one_per_head) * kinds.size
    if masks_count == 1:
        listed = max(kinds.shape[1 - axis] * int((kinds > 0).sum(axis=axis).max()) for axis in (0, 1))
    lack = f'support for lists of {listed} tiles, only of up to {MOST_LISTED_TILES}'
    raise_unsupported('splash', {lack: listed > MOST_LISTED_TILES})


def check_mask_bytes(one_per_head: list[PatternMask]) -> None:
    """Raises a NotImplementedError if the different masks of tiles of all heads take more than `MOST_MASK_BYTES`."""
    different = {
        (head, id(allowed_SS))
        for head, mask in enumerate(set(one_per_head))
        for allowed_SS in mask.partial_tiles.values()
    }
    check_mask_count(len(different), one_per_head[0].tile)


def check_mask_count(count: int, tile: int) -> None:
    """Raises a NotImplementedError if this number of masks of tiles takes more than `MOST_MASK_BYTES`."""
    lack = f'support for patterns with more than {MOST_MASK_BYTES >> 20} MiB of different masks of tiles'
    raise_unsupported('splash', {lack: count * tile**2 > MOST_MASK_BYTES})


def pad_rows(x: Shaped[Array, 'B L ...'], tile: int) -> Shaped[Array, 'B n ...']:
    """Returns an array [B, L, ...] padded with zeros along L to whole tiles."""
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % tile), *((0, 0),) * (x.ndim - 2)))


def padded_segments(request: Request, tile: int) -> kernels.SegmentIds | None:
    """Returns the segments of queries and keys, padded with 0 to whole tiles.

    They are None if the request has no segments and no key was added to fill tiles.
    """
    (batch, queries), keys = request.query.shape[:2], request.key.shape[1]
    segments = request.segments
    if segments is None:
        if keys % tile == 0:
            return None
        segments = QueryKeyPair(*(jnp.ones((batch, size), jnp.int32) for size in (queries, keys)))
    return kernels.SegmentIds(*(pad_rows(x, tile) for x in segments))


def map_over_rows_and_heads(kernel: Any, arrays: list[Array], segments: kernels.SegmentIds | None) -> Array:
    """Returns the outputs of `kernel` for the queries, keys, values and segments of each row.

    On a mesh, each device computes its own rows and heads, because the compiler cannot shard a kernel.

    Args:
        kernel: the result of `make_kernel`.
        arrays: queries [B, H, L, K], keys and values [B, G, M, K].
        segments: segments of queries [B, L] and keys [B, M]; None if all queries may read all keys of their row.
    """
    compute = jax.vmap(kernel, in_axes=(0, 0, 0, None if segments is None else 0))
    mesh = device_mesh()
    if mesh is None:
        return compute(*arrays, segments)
    by_head = has_divisible_heads(arrays[0].shape[1], arrays[1].shape[1])
    rows, heads, *_ = partition('BHKK' if by_head else 'BKKK', arrays[0].shape, mesh, ACTIVATIONS)
    row_and_head = PartitionSpec(rows, heads)
    mapped = jax.shard_map(
        compute,
        mesh=mesh,
        in_specs=(row_and_head, row_and_head, row_and_head, PartitionSpec(rows)),
        out_specs=row_and_head,
        check_vma=False,
    )
    return mapped(*arrays, segments)


def query_segments_with_keys(segments: QueryKeyPair) -> Array:
    """Returns the segments of the queries [B, L], with 0 for a query whose segment has no key.

    The segments must be such that `check_supported` accepts the request.
    """
    if segments.query is segments.key:
        return segments.query  # Each query may read its own key, so no query is without keys.
    has_key_BL = (segments.query[:, :, None] == segments.key[:, None, :]).any(axis=-1)
    return jnp.where(has_key_BL, segments.query, 0)


def check_supported(request: Request) -> None:
    """Raises a NotImplementedError that names what the request needs and the kernels or this machine lack."""
    tuning, width, mesh = device_tuning(), request.query.shape[3], device_mesh()
    pattern = request_pattern(request)
    raise_unsupported('splash', {'patterns that differ by layer in one program': bool(pattern.layers)})
    patterns = head_patterns(pattern, request.query.shape[2])
    lacks = {
        'TPU on this machine': tuning.splash_tile == 0,
        f'inputs of type {request.query.dtype}': request.query.dtype != jnp.bfloat16,
        f'support for heads of width {width}': width % 8 != 0 or width > WIDEST_HEAD,
        'additive bias': request.bias is not None or request.relative is not None,
        'additive scores': request.additive is not None,
        'attention dropout': request.dropout is not None,
        'log-sum-exp that can be merged': request.return_lse,
        'dilated or strided patterns': any(
            order > 1 for pattern in patterns for _, order in split_into_disjoint_patterns(pattern)
        ),
        'support for positions other than 0, 1, ...': patterns_compare_positions(patterns)
        and not request.has_default_positions,
        'support for queries without a key in their pattern': not every_query_has_keys(request, patterns),
        'patterns that differ by head on a mesh': len(patterns) > 1 and mesh is not None,
    }
    raise_unsupported('splash', lacks)


def patterns_compare_positions(patterns: list[Pattern]) -> bool:
    """Returns whether any pattern depends on positions."""
    return any(pattern.uses_positions for pattern in patterns)


def every_query_has_keys(request: Request, patterns: list[Pattern]) -> bool:
    """Returns whether the patterns leave each query a key of its segment, if any key has this segment.

    They do if they allow all pairs. They also do if queries and keys are the same tokens and each query may read its
    own key.
    """
    if not patterns_compare_positions(patterns):
        return True
    queries, keys, segments = request.query.shape[1], request.key.shape[1], request.segments
    if queries != keys or (segments is not None and segments.query is not segments.key):
        return False
    positions = np.arange(queries)
    return all(np.asarray(pattern(positions, positions)).all() for pattern in patterns)
