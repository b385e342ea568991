"""The forward kernel of block-sparse attention: softmax attention of a tile of queries over the tiles of keys that it
visits, with a running maximum and sum (FlashAttention: Dao et al. 2022, arXiv 2205.14135, algorithm 1).
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
from efficient_attention.attention.dense_attention import MASKED


def attend_queries(
    options: KernelOptions, lists: TileLists, tokens: Tokens, q_BLHK: Array, k_BMGK: Array, v_BMGK: Array
) -> tuple[Array, Array]:
    """Returns the output [B, L, H, K] in the queries' type, and the float32 log-sum-exp [B, H, L] in units of log 2.

    In these units the weights that the backward kernels compute from it have no rounding of a conversion.
    L and M are whole tiles, and K is 64 or 128.
    """
    batch, length, heads, width = q_BLHK.shape
    group, (rows, columns, _) = heads // k_BMGK.shape[2], options.sizes
    dtype = q_BLHK.dtype

    def kernel(refs: Any, outs: Any, q_s: Any, lse_s: Any, arrived: Any) -> None:
        lists, queries, keys, q, k, v = refs
        out, lse_out = outs
        program = tiles.read_program(lists)
        warpgroup, key_head = program.warpgroup, lax.div(program.head, jnp.int32(group))
        first = program.tile * rows + warpgroup * tiles.ROWS
        own = pl.ds(first, tiles.ROWS)
        of_rows = tiles.at_rows(queries, program, own)

        def compute(visit: Any) -> None:
            mine = q_s.at[warpgroup]
            plgpu.copy_gmem_to_smem(q.at[program.row, own, program.head], mine, arrived.at[warpgroup])
            highest = tiles.zeros(tiles.ROWS) + tiles.LOWEST
            plgpu.barrier_wait(arrived.at[warpgroup])
            sums, highest, total = visit((tiles.zeros(tiles.ROWS, width), highest, tiles.zeros(tiles.ROWS)))
            has_key = total > 0.0
            share = jnp.where(has_key, 1.0 / ((1.0 - options.dropout_rate) * total), 0.0)
            mine[...] = (sums * lax.broadcast_in_dim(share, sums.shape, [0])).astype(dtype)
            lse = highest + jnp.log2(jnp.where(has_key, total, 1.0))
            lse_s.at[warpgroup][...] = jnp.where(has_key, lse, MASKED)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(mine, out.at[program.row, own, program.head])
            plgpu.copy_smem_to_gmem(lse_s.at[warpgroup], lse_out.at[program.row, program.head, own])
            plgpu.wait_smem_to_gmem(0)

        def step(index: Any, k_s: Any, v_s: Any, keys_s: Any, carry: Any) -> Any:
            sums, highest, total = carry
            tile = tiles.Tile(program, index[0], columns, query_axis=0)
            scores = tiles.multiply(q_s.at[warpgroup], k_s.T) * (options.scale * tiles.LOG2E)
            scores = tiles.mask_partial_tile(options, tile, scores, of_rows, keys_s, lists)
            new_highest = jnp.maximum(highest, scores.max(axis=1))
            shrunk = jnp.exp2(highest - new_highest)
            weights = jnp.exp2(scores - tile.spread_rows(new_highest))
            total = total * shrunk + weights.sum(axis=1)
            sums = sums * lax.broadcast_in_dim(shrunk, sums.shape, [0])
            if options.dropout_rate:
                weights = jnp.where(tiles.kept_pairs(options, tile, of_rows, keys_s), weights, 0.0)
            return tiles.add_product(options, sums, weights, v_s), new_highest, total

        def locate(number: tiles.Scalar) -> tuple[tiles.Scalar, tiles.Scalar]:
            return key_head, program.read_entry(lists.tiles_bPE, number)

        tiles.visit_tiles(options, program, step, compute, columns, locate, (k, v, keys))

    return tiles.run_kernel(
        kernel,
        (batch, heads, length // rows),
        (lists, tokens.of_queries(), tokens.of_keys(), q_BLHK, k_BMGK, v_BMGK),
        (jax.ShapeDtypeStruct(q_BLHK.shape, dtype), jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)),
        {
            'q_s': plgpu.SMEM((tiles.WARPGROUPS, tiles.ROWS, width), dtype, transforms=tiles.swizzled()),
            'lse_s': plgpu.SMEM((tiles.WARPGROUPS, tiles.ROWS), jnp.float32),
            'arrived': plgpu.Barrier(num_barriers=tiles.WARPGROUPS),
        },
        'block_sparse_attention',
    )
