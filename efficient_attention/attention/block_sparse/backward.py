"""The backward kernels of block-sparse attention: gradients of a tile of queries over the tiles of keys that it visits,
and gradients of a tile of keys and values over the tiles of queries that visit it.

Each recomputes the weights from the log-sum-exp (Dao et al. 2022, arXiv 2205.14135, algorithm 4). No two programs write
the same numbers, so results do not depend on the order in which programs run.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from efficient_attention.attention.block_sparse import tiles
from efficient_attention.attention.block_sparse.lists import TileLists
from efficient_attention.attention.block_sparse.tiles import KernelOptions, Tokens


def query_gradients(
    options: KernelOptions, lists: TileLists, tokens: Tokens, arrays: tuple[Array, ...], rows_BHL: dict[str, Array]
) -> Array:
    """Returns the gradient of the queries, [B, L, H, K].

    Args:
        options: of the kernels.
        lists: for each tile of queries the tiles of keys.
        tokens: numbers of queries and keys.
        arrays: queries and output gradients [B, L, H, K], keys and values [B, M, G, K].
        rows_BHL: float32 numbers of the queries: 'lse', in units of log 2 and huge for a query without keys, and
            'delta', the gradient of a logit's own softmax sum.
    """
    q_BLHK, _, k_BMGK, _ = arrays
    batch, length, heads, width = q_BLHK.shape
    group, (rows, columns, _), dtype = heads // k_BMGK.shape[2], options.sizes, q_BLHK.dtype

    def kernel(refs: Any, outs: Any, q_s: Any, dout_s: Any, arrived: Any) -> None:
        lists, queries, keys, (q, dout, k, v) = refs
        program = tiles.read_program(lists)
        warpgroup, key_head = program.warpgroup, lax.div(program.head, jnp.int32(group))
        own = pl.ds(program.tile * rows + warpgroup * tiles.ROWS, tiles.ROWS)
        of_rows = tiles.at_rows(queries, program, own)

        def compute(visit: Any) -> None:
            copies = ((q, q_s), (dout, dout_s))
            for source, target in copies:
                plgpu.copy_gmem_to_smem(
                    source.at[program.row, own, program.head], target.at[warpgroup], arrived.at[warpgroup]
                )
            numbers = tiles.load_rows(of_rows, ['lse', 'delta'])
            plgpu.barrier_wait(arrived.at[warpgroup])
            sums, _ = visit((tiles.zeros(tiles.ROWS, width), numbers))
            q_s.at[warpgroup][...] = (sums * options.scale).astype(dtype)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(q_s.at[warpgroup], outs[0].at[program.row, own, program.head])
            plgpu.wait_smem_to_gmem(0)

        def step(index: Any, k_s: Any, v_s: Any, keys_s: Any, carry: Any) -> Any:
            sums, numbers = carry
            tile = tiles.Tile(program, index[0], columns, query_axis=0)
            scores = tiles.multiply(q_s.at[warpgroup], k_s.T) * (options.scale * tiles.LOG2E)
            scores = tiles.mask_partial_tile(options, tile, scores, of_rows, keys_s, lists)
            weights = jnp.exp2(scores - tile.spread_rows(numbers['lse']))
            dweights = tiles.multiply(dout_s.at[warpgroup], v_s.T)
            if options.dropout_rate:
                kept = tiles.kept_pairs(options, tile, of_rows, keys_s)
                dweights = jnp.where(kept, dweights * (1.0 / (1.0 - options.dropout_rate)), 0.0)
            dlogits = weights * (dweights - tile.spread_rows(numbers['delta']))
            dlogits = tiles.without_self(options, tile, of_rows, keys_s, dlogits)
            return tiles.add_product(options, sums, dlogits, k_s), numbers

        def locate(number: tiles.Scalar) -> tuple[tiles.Scalar, tiles.Scalar]:
            return key_head, program.read_entry(lists.tiles_bPE, number)

        tiles.visit_tiles(options, program, step, compute, columns, locate, (k, v, keys))

    memory = plgpu.SMEM((tiles.WARPGROUPS, tiles.ROWS, width), dtype, transforms=tiles.swizzled())
    (dq_BLHK,) = tiles.run_kernel(
        kernel,
        (batch, heads, length // rows),
        (lists, tokens.of_queries() | rows_BHL, tokens.of_keys(), arrays),
        (jax.ShapeDtypeStruct(q_BLHK.shape, dtype),),
        {
            'q_s': memory,
            'dout_s': memory,
            'arrived': plgpu.Barrier(num_arrivals=2, num_barriers=tiles.WARPGROUPS),
        },
        'block_sparse_attention_dq',
    )
    return dq_BLHK


def key_gradients(
    options: KernelOptions, lists: TileLists, tokens: Tokens, arrays: tuple[Array, ...], rows_BHL: dict[str, Array]
) -> tuple[Array, Array]:
    """Returns the gradients of keys and values, [B, M, G, K].

    The arguments are those of `query_gradients`, with for each tile of keys the tiles of queries as `lists`.
    """
    q_BLHK, _, k_BMGK, _ = arrays
    batch, length, heads, width = q_BLHK.shape
    keys_count, key_heads = k_BMGK.shape[1:3]
    group, (columns, rows, _), dtype = heads // key_heads, options.sizes_by_key, q_BLHK.dtype
    visited = length // columns

    def kernel(refs: Any, outs: Any, k_s: Any, v_s: Any, arrived: Any) -> None:
        lists, queries, keys, (q, dout, k, v) = refs
        program = tiles.read_program(lists)
        warpgroup = program.warpgroup
        own = pl.ds(program.tile * rows + warpgroup * tiles.ROWS, tiles.ROWS)
        of_rows = tiles.at_rows(keys, program, own)

        def compute(visit: Any) -> None:
            for source, target in ((k, k_s), (v, v_s)):
                plgpu.copy_gmem_to_smem(
                    source.at[program.row, own, program.head], target.at[warpgroup], arrived.at[warpgroup]
                )
            plgpu.barrier_wait(arrived.at[warpgroup])
            dk, dv = visit((tiles.zeros(tiles.ROWS, width), tiles.zeros(tiles.ROWS, width)))
            k_s.at[warpgroup][...] = (dk * options.scale).astype(dtype)
            v_s.at[warpgroup][...] = (dv * (1.0 / (1.0 - options.dropout_rate))).astype(dtype)
            plgpu.commit_smem()
            for source, target in ((k_s, outs[0]), (v_s, outs[1])):
                plgpu.copy_smem_to_gmem(source.at[warpgroup], target.at[program.row, own, program.head])
            plgpu.wait_smem_to_gmem(0)

        def step(index: Any, q_s: Any, dout_s: Any, queries_s: Any, carry: Any) -> Any:
            dk, dv = carry
            tile = tiles.Tile(program, index[0], columns, query_axis=1)
            scores = tiles.multiply(k_s.at[warpgroup], q_s.T) * (options.scale * tiles.LOG2E)
            scores = tiles.mask_partial_tile(options, tile, scores, of_rows, queries_s, lists)
            numbers = tiles.load_columns(queries_s, ['lse', 'delta'])
            weights = jnp.exp2(scores - tile.spread_queries(numbers['lse']))
            # The values' gradient comes before the weights', so that fewer numbers are in registers at once. Dropped
            # weights have a minus sign until then.
            if options.dropout_rate:
                weights = jnp.where(tiles.kept_pairs(options, tile, of_rows, queries_s), weights, -weights)
                dv = tiles.add_product(options, dv, jnp.maximum(weights, 0.0), dout_s)
                dweights = tiles.multiply(v_s.at[warpgroup], dout_s.T) * (1.0 / (1.0 - options.dropout_rate))
                dweights = jnp.where(weights > 0.0, dweights, 0.0)
                weights = abs(weights)
            else:
                dv = tiles.add_product(options, dv, weights, dout_s)
                dweights = tiles.multiply(v_s.at[warpgroup], dout_s.T)
            dlogits = weights * (dweights - tile.spread_queries(numbers['delta']))
            dlogits = tiles.without_self(options, tile, of_rows, queries_s, dlogits)
            return tiles.add_product(options, dk, dlogits, q_s), dv

        def locate(number: tiles.Scalar) -> tuple[tiles.Scalar, tiles.Scalar]:
            found = program.read_entry(lists.tiles_bPE, number)
            head = program.head * group + lax.div(found, jnp.int32(visited))
            return head, lax.rem(found, jnp.int32(visited))

        tiles.visit_tiles(options, program, step, compute, columns, locate, (q, dout, queries))

    memory = plgpu.SMEM((tiles.WARPGROUPS, tiles.ROWS, width), dtype, transforms=tiles.swizzled())
    gradient = jax.ShapeDtypeStruct(k_BMGK.shape, dtype)
    return tiles.run_kernel(
        kernel,
        (batch, key_heads, keys_count // rows),
        (lists, tokens.of_queries() | rows_BHL, tokens.of_keys(), arrays),
        (gradient, gradient),
        {
            'k_s': memory,
            'v_s': memory,
            'arrived': plgpu.Barrier(num_arrivals=2, num_barriers=tiles.WARPGROUPS),
        },
        'block_sparse_attention_dkv',
    )
