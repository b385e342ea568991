"""What the kernels of block-sparse attention share: their options and arrays, the mask and the dropout of a tile, and
matrix products on the tensor cores of NVIDIA Hopper GPUs.

The kernels are written in Pallas for Mosaic GPU. A warpgroup, 128 threads, computes 64 rows of a tile. Two warpgroups
share the visited tiles, which a third one copies into shared memory. Arrays in registers have the layout of a
warpgroup's matrix product (wgmma).
"""

import dataclasses
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Int, Shaped

from efficient_attention.attention.block_sparse.lists import TileLists, TileSizes, looked_up_patterns
from efficient_attention.attention.dropout import hash_bits, is_kept
from efficient_attention.attention.patterns import Pattern

Scalar = Int[Array, '']
Registers = Shaped[Array, '...']  # an array in the registers of a warpgroup
ROWS = 64  # rows of a matrix product of one warpgroup
WARPGROUPS = 2  # that compute; one more copies
LOG2E = math.log2(math.e)
LOWEST = -1e30  # the running maximum before the first key, in units of log 2
FORBIDDEN = -2e30  # the score of a forbidden pair; below LOWEST, so that its weight is 0 even in a row without keys
LAYOUT = plgpu.Layout.WGMMA
# JAX 0.10 requires an index of `plgpu.load`; later versions have none.
_INDEX = ((),) if 'idx' in inspect.signature(plgpu.load).parameters else ()


@dataclasses.dataclass(frozen=True)
class KernelOptions:
    """What is static in a call of the kernels.

    Args:
        pattern: the pattern of one layer; heads differ only in what it looks up.
        block: number of positions in the side of a block of the lists' words.
        masks: whether any pair in the lists is forbidden, by the pattern or by segments.
        dropout_rate: probability to drop a weight; 0 = no dropout.
        scale: factor of the products of queries and keys.
        sizes: tiles of the forward kernel and of the kernel for query gradients.
        sizes_by_key: tiles of the kernel for gradients of keys and values.
        stages: number of visited tiles in shared memory at once.
        visits: tiles that all programs of a batch row visit, with `sizes` and with `sizes_by_key`.
        is_interpreted: whether JAX emulates the kernels on a CPU.
        self_score: the score of a position with itself, in units of log 2, which has no gradient; None = its product.
    """

    pattern: Pattern
    block: int
    masks: bool
    dropout_rate: float
    scale: float
    sizes: TileSizes
    sizes_by_key: TileSizes
    stages: int
    visits: tuple[int, int]
    is_interpreted: bool
    self_score: float | None = None


class Tokens(NamedTuple):
    """Numbers of queries and keys, padded to whole tiles; a row of size 1 stands for all batch rows.

    `segments` differ between padding of queries and of keys, so that no padding is read. Dropout hashes the sums of
    `bits`: seeds of row, head and query, and counters of the keys. Fields are None if the kernels need no such numbers.
    """

    positions_bL: Array | None
    positions_bM: Array | None
    segments_bL: Array | None
    segments_bM: Array | None
    bits_BHL: Array | None
    bits_1M: Array | None

    def of_queries(self) -> dict[str, Array]:
        """Returns the arrays of queries that exist, by name."""
        return {name: x for name, x in zip(NAMES, self[::2], strict=True) if x is not None}

    def of_keys(self) -> dict[str, Array]:
        """Returns the arrays of keys that exist, by name."""
        return {name: x for name, x in zip(NAMES, self[1::2], strict=True) if x is not None}


NAMES = ('positions', 'segments', 'bits')
Vectors = dict[str, Array]  # numbers of the queries or keys of one tile, in registers, by name
References = dict[str, Any]  # the same in memory


class KnownPairs(Pattern):
    """Takes the place of a looked-up pattern in the kernel: its mask of the tile."""

    def __init__(self, allowed: Registers) -> None:
        object.__setattr__(self, 'allowed', allowed)

    def __call__(self, query: Any, key: Any) -> Any:  # noqa: ARG002
        return self.allowed  # type: ignore[attr-defined]


class Program(NamedTuple):
    """What one warpgroup of a program computes: its batch row, head and computed tile, and its entries in the lists."""

    row: Scalar
    head: Scalar
    warpgroup: Scalar
    tile: Scalar
    start: Scalar
    whole: Scalar
    visits: Scalar

    def read_entry(self, ref: Any, number: Scalar) -> Array:
        """Returns the value of the program's entry with this number, of an array [b, P, E] in global memory."""
        return ref[first_or(ref, 0, self.row), first_or(ref, 1, self.head), self.start + number]


class Tile(NamedTuple):
    """A visited tile: its pairs with the rows of one warpgroup, [rows, columns]."""

    program: Program
    number: Scalar  # of the entry among those of the program
    columns: int
    query_axis: int  # 0 if the rows are queries, 1 if they are keys

    def spread_rows(self, x: Registers) -> Array:
        """Returns a number per row for each pair."""
        return lax.broadcast_in_dim(x, (ROWS, self.columns), [0])

    def spread_columns(self, x: Registers) -> Array:
        """Returns a number per column for each pair."""
        return lax.broadcast_in_dim(x, (ROWS, self.columns), [1])

    def spread_queries(self, x: Registers) -> Array:
        """Returns a number per query for each pair."""
        return lax.broadcast_in_dim(x, (ROWS, self.columns), [self.query_axis])

    def spread_keys(self, x: Registers) -> Array:
        """Returns a number per key for each pair."""
        return lax.broadcast_in_dim(x, (ROWS, self.columns), [1 - self.query_axis])


def mask_partial_tile(
    options: KernelOptions, tile: Tile, scores: Registers, rows: References, columns: References, lists: TileLists
) -> Array:
    """Returns the scores of a tile with `FORBIDDEN` for pairs that the pattern or the segments forbid.

    Args:
        options: of the kernel.
        tile: which pairs.
        scores: of all pairs.
        rows: numbers of the computed tile's tokens, in global memory. They are loaded where they are needed, because
            registers are few.
        columns: numbers of the visited tile's tokens, in shared memory.
        lists: the kernel's lists, in global memory.
    """

    def masked() -> Array:
        names = [name for name in ('positions', 'segments') if name in columns]
        computed, visited = load_rows(rows, names), load_columns(columns, names)
        queries, keys = (computed, visited) if tile.query_axis == 0 else (visited, computed)
        words = [tile.program.read_entry(word, tile.number) for word in lists.words_WbPE]
        return mask_scores(options, tile, scores, queries, keys, words)

    return lax.cond(tile.number >= tile.program.whole, masked, lambda: scores) if options.masks else scores


def mask_scores(
    options: KernelOptions, tile: Tile, scores: Registers, queries: Vectors, keys: Vectors, words: list[Array]
) -> Array:
    """Returns the masked scores of a tile, given the numbers of its queries and keys, and its words."""
    allowed = None
    if options.self_score is not None:
        is_self = tile.spread_queries(queries['positions']) == tile.spread_keys(keys['positions'])
        scores = jnp.where(is_self, jnp.float32(options.self_score), scores)
    if 'segments' in keys:
        allowed = tile.spread_queries(queries['segments']) == tile.spread_keys(keys['segments'])
    if 'positions' in keys:
        pattern = with_known_pairs(options.pattern, known_pairs(options, tile, words))
        by_pattern = pattern(tile.spread_queries(queries['positions']), tile.spread_keys(keys['positions']))
        allowed = by_pattern if allowed is None else allowed & by_pattern
    return scores if allowed is None else jnp.where(allowed, scores, jnp.float32(FORBIDDEN))


def known_pairs(options: KernelOptions, tile: Tile, words: list[Array]) -> dict[Pattern, Array]:
    """Returns the mask of a tile for each looked-up pattern, from the bits of its word."""
    sizes = options.sizes if tile.query_axis == 0 else options.sizes_by_key
    factors = sizes.keys // options.block, 1  # of a block's number along the queries and along the keys
    row_factor, column_factor = factors if tile.query_axis == 0 else factors[::-1]

    def block_numbers(size: int, reduced: int, first: Any) -> Array:
        positions = plgpu.layout_cast(lax.broadcasted_iota(jnp.int32, (size,), 0), LAYOUT.reduce(reduced))
        return (positions + first) >> (options.block.bit_length() - 1)

    masks = {}
    for pattern, word in zip(looked_up_patterns(options.pattern), words, strict=True):
        # Bits of a row's blocks, and one bit for each column: a mask of all pairs would take many registers.
        row_bits = word >> (block_numbers(ROWS, 1, tile.program.warpgroup * ROWS) * row_factor)
        column_bits = jnp.int32(1) << (block_numbers(tile.columns, 0, jnp.int32(0)) * column_factor)
        masks[pattern] = (tile.spread_rows(row_bits) & tile.spread_columns(column_bits)) != 0
    return masks


def without_self(
    options: KernelOptions, tile: Tile, rows: References, columns: References, dlogits: Registers
) -> Registers:
    """Returns the gradients of logits, with 0 for the constant score of a position with itself.

    Positions are compared again, because few registers are left to keep the scores.
    """
    if options.self_score is None:
        return dlogits
    computed, visited = load_rows(rows, ['positions']), load_columns(columns, ['positions'])
    is_self = tile.spread_rows(computed['positions']) == tile.spread_columns(visited['positions'])
    return jnp.where(is_self, 0.0, dlogits)


def with_known_pairs(pattern: Pattern, known: dict[Pattern, Array]) -> Pattern:
    """Returns the pattern with masks in place of the patterns that it looks up."""
    if pattern in known:
        return KnownPairs(known[pattern])
    return pattern.map_parts(lambda part: with_known_pairs(part, known))


def kept_pairs(options: KernelOptions, tile: Tile, rows: References, columns: References) -> Array:
    """Returns which weights of a tile dropout keeps, as `dropout.dropout_keep_mask` defines.

    A row's and a column's bits are added before they are hashed, so it does not matter which are those of queries.
    """
    computed, visited = load_rows(rows, ['bits'])['bits'], load_columns(columns, ['bits'])['bits']
    return is_kept(hash_bits(tile.spread_rows(computed) + tile.spread_columns(visited)), options.dropout_rate)


# ---- in the kernels ----


def load(ref: Any, **options: Any) -> Array:
    """Returns the array of a reference in registers."""
    return plgpu.load(ref, *_INDEX, **options)


def load_rows(refs: References, names: Sequence[str]) -> Vectors:
    """Returns numbers of the rows of a computed tile, from global memory."""
    return {name: load(refs[name], layout=LAYOUT.reduce(1), optimized=False) for name in names}


def load_columns(refs: References, names: Sequence[str]) -> Vectors:
    """Returns numbers of the columns, which a visited tile has, from shared memory."""
    return {name: load(refs[name], layout=LAYOUT.reduce(0)) for name in names}


def zeros(*shape: int) -> Array:
    """Returns zeros in registers."""
    return plgpu.layout_cast(jnp.zeros(shape, jnp.float32), LAYOUT if len(shape) == 2 else LAYOUT.reduce(1))


def multiply(left: Any, right: Any) -> Array:
    """Returns the float32 product of two matrices in shared memory."""

    def product(sums: Any) -> Array:
        plgpu.wgmma(sums, left, right)
        return sums[...]

    return pl.run_scoped(product, plgpu.WGMMAAccumulatorRef((left.shape[0], right.shape[1]), jnp.float32))


def add_product(options: KernelOptions, sums: Registers, left: Registers, right: Any) -> Array:
    """Returns `sums` plus the product of a matrix in registers, rounded to the type of the other one, in shared memory.

    JAX emulates no product with an operand in registers.
    """
    left = left.astype(right.dtype)
    if options.is_interpreted:
        return sums + left.astype(jnp.float32) @ right[...].astype(jnp.float32)
    return pl.run_state(lambda ref: plgpu.wgmma(ref, left, right))(plgpu.WGMMAAccumulatorRef.init(sums))


def swizzled() -> tuple[Any, ...]:
    """Returns the layout of a matrix of 16-bit numbers in shared memory, as products need it."""
    return plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)


def read_program(refs: TileLists) -> Program:
    """Returns what this program computes."""
    row, head, number, warpgroup = (lax.axis_index(name) for name in GRID)
    at = first_or(refs.programs_bPT4, 0, row), first_or(refs.programs_bPT4, 1, head), number
    return Program(row, head, warpgroup, *(refs.programs_bPT4[(*at, column)] for column in range(4)))


GRID = ('row', 'head', 'tile', 'warpgroup')


def first_or(ref: Any, axis: int, index: Scalar) -> Any:
    """Returns the index along an axis, or 0 if the axis has size 1 for all."""
    return 0 if ref.shape[axis] == 1 else index


def at_rows(refs: References, program: Program, own: Any) -> References:
    """Returns references to the numbers of some tokens, of arrays [b, L] or [B, H, L]."""
    return {
        name: ref.at[program.row, program.head, own]
        if len(ref.shape) == 3
        else ref.at[first_or(ref, 0, program.row), own]
        for name, ref in refs.items()
    }


def visit_tiles(
    options: KernelOptions,
    program: Program,
    step: Callable,
    compute: Callable,
    columns: int,
    locate: Callable[[Scalar], tuple[Scalar, Scalar]],
    arrays: Any,
) -> None:
    """Runs a step for each visited tile, while one warpgroup copies the tiles to come.

    Args:
        options: of the kernel.
        program: which runs.
        step: a function of the index, of references to each array's part of the tile, and of what it carries.
        compute: what the computing warpgroups run: a function of a function that takes the initial carry and returns
            the last one.
        columns: number of tokens in a visited tile.
        locate: returns the head and the tile of the entry with a given number.
        arrays: a tuple of trees of references to arrays [B, L, H, K], [B, H, L] or [b, L].
    """

    def spec(ref: Any) -> Any:
        def place(number: Scalar) -> tuple[Any, ...]:
            head, tile = locate(number)
            return {2: (tile,), 3: (head, tile), 4: (tile, head, 0)}[len(ref.shape)]

        shape: tuple[Any, ...] = {2: (columns,), 3: (None, columns), 4: (columns, None, ref.shape[-1])}[len(ref.shape)]
        return plgpu.BlockSpec(shape, place, transforms=swizzled() if len(ref.shape) == 4 else ())

    pipeline = plgpu.emit_pipeline_warp_specialized(
        step,
        grid=(program.visits,),
        max_concurrent_steps=options.stages,
        num_compute_wgs=WARPGROUPS,
        memory_registers=32,
        wg_axis=GRID[3],
        compute_context=compute,
        in_specs=jax.tree.map(spec, arrays),
    )
    pipeline(*jax.tree.map(lambda ref: ref.at[first_or(ref, 0, program.row)], arrays))


def run_kernel(
    body: Callable, grid: tuple[int, int, int], operands: Any, out: Any, scratch: dict[str, Any], name: str
) -> Any:
    """Returns the results of a kernel for operands in a tree.

    Args:
        body: the kernel: a function of references to the operands, results and scratch memory.
        grid: numbers of batch rows, heads and computed tiles.
        operands: a tree of arrays.
        out: shapes of the results, a tuple.
        scratch: shared memory and barriers by name.
        name: of the kernel in profiles.
    """
    leaves, tree = jax.tree.flatten(operands)

    def kernel(*refs: Any, **memory: Any) -> None:
        body(jax.tree.unflatten(tree, refs[: len(leaves)]), refs[len(leaves) :], **memory)

    return plgpu.kernel(
        kernel,
        out_type=out,
        grid=grid,
        grid_names=GRID[:3],
        num_threads=WARPGROUPS + 1,
        thread_name=GRID[3],
        scratch_types=scratch,
        compiler_params=plgpu.CompilerParams(approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
        kernel_name=name,
    )(*leaves)
