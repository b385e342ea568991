"""Computes LSH attention on NVIDIA Hopper GPUs by the kernels of softmax attention's backend `mosaic`.

Each hash round of each head is a row of its own in sorted order. Its queries read the tiles of their own chunk and of
the chunk before. The rounds are merged through their log-sum-exps. Vectors are brought into sorted order and back by
gathering, in the gradients too, so the same inputs give the same bits.

Axes as in `sorted_rounds.py`; r = B H T rows.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Shaped

from efficient_attention.attention.block_sparse import listed_attention as kernels
from efficient_attention.attention.block_sparse.lists import BLOCKS, choose_lists, make_lists
from efficient_attention.attention.block_sparse.tiles import LOG2E, KernelOptions, Tokens
from efficient_attention.attention.block_sparse.work import count_visits
from efficient_attention.attention.device_mesh import device_mesh
from efficient_attention.attention.devices import device_tuning
from efficient_attention.attention.dropout import hash_in_index, row_seeds, spread_index
from efficient_attention.attention.lsh.definition import SELF_LOGIT, unit_keys
from efficient_attention.attention.lsh.sorted_rounds import NO_RUN, HashRounds, LSHLayout, make_rounds
from efficient_attention.attention.lsh.sorting import take_along_rows
from efficient_attention.attention.mechanism import raise_unsupported
from efficient_attention.attention.partial_softmax import merge_partial_softmax
from efficient_attention.attention.patterns import ListedTiles, Pattern, PositionRanges, SomeAndAll
from efficient_attention.attention.patterns.listed_tiles import MOST_TILES
from efficient_attention.attention.request import QueryKeyPair, Request


@dataclasses.dataclass(frozen=True)
class SortedPositions(Pattern):
    """The pattern of tokens in sorted order, by their positions before the sort: all pairs, or if causal k <= q.

    Its tiles are those of the sorted order, in which any pair may be causal. A tile with a token twice is not whole,
    because the score of a position with itself is a constant.
    """

    causal: bool

    def __call__(self, query: Any, key: Any) -> Any:
        return key <= query if self.causal else (query == query) & (key == key)

    def tile_coverage(self, query: PositionRanges, key: PositionRanges) -> SomeAndAll:
        """Returns True, and whether the kernel needs no mask for a tile, for ranges of the sorted order."""
        some = (query.low == query.low) & (key.low == key.low)
        is_apart = (query.high < key.low) | (key.high < query.low)
        return some, is_apart & (not self.causal)


def check_supported(request: Request, layout: LSHLayout) -> None:
    """Raises a NotImplementedError that names what the request needs and the kernels or this machine lack."""
    lacks = kernels.lacks_of_kernels(request) | {
        'support for a pair counted once': layout.deduplicate and layout.rounds > 1,
        'rounds computed one after another': layout.sequential,
        f'chunks of {layout.size} positions': layout.chunk_count > 1 and layout.size % BLOCKS[-1] != 0,
        'support for positions other than 0, 1, ...': layout.causal and not request.has_default_positions,
        f'{layout.chunk_count} chunks': layout.chunk_count > MOST_TILES,
        'LSH attention on a mesh': device_mesh() is not None,
    }
    raise_unsupported('mosaic', lacks)


def attend_rounds(
    request: Request, layout: LSHLayout, *, is_interpreted: bool = False
) -> tuple[Float[Array, 'B L H K'], Float[Array, 'B H L']]:
    """Returns LSH attention's output and log-sum-exp, for a request that `check_supported` accepts."""
    batch, _, heads, width = request.query.shape
    frozen = dataclasses.replace(request, query=jax.lax.stop_gradient(request.query))
    rounds, _ = make_rounds(frozen, layout)
    q_BHLK, v_BHLK = request.query.swapaxes(1, 2), request.value.swapaxes(1, 2)
    k_BHLK = unit_keys(q_BHLK).astype(q_BHLK.dtype)
    rows = batch * heads * layout.rounds
    slots = layout.size * layout.chunk_count
    q, k, v = (
        kernels.pad_vectors(sort_vectors(x, rounds.order_BHTs, rounds.slots_BHTL).reshape(rows, slots, 1, width))
        for x in (q_BHLK, k_BHLK, v_BHLK)
    )
    tokens = make_tokens(request, rounds)
    numbers = np.arange(slots, dtype=np.int32).tobytes()
    pattern = chunk_pattern(layout) & SortedPositions(layout.causal)
    sizes = kernels.tile_sizes()
    lists = [make_lists(((pattern,),), (numbers, numbers), 1, size, 1) for size in sizes]
    options = KernelOptions(
        pattern=pattern,
        block=lists[0].block,
        masks=True,
        dropout_rate=layout.dropout_rate,
        scale=1.0,
        sizes=sizes[0],
        sizes_by_key=sizes[1],
        stages=device_tuning().mosaic_stages,
        visits=(count_visits(lists[0], 1), count_visits(lists[1], 1)),
        is_interpreted=is_interpreted,
        self_score=SELF_LOGIT * LOG2E,
    )
    runs = None if rounds.runs_BHTs is None else QueryKeyPair(tokens.segments_bL, tokens.segments_bM)
    chosen = [choose_lists(one, None, runs, size) for one, size in zip(lists, sizes, strict=True)]
    out, lse = kernels.attend_lists(options, q, k, v, tokens, *chosen)
    shape_BHTs = rounds.order_BHTs.shape
    out_BHTsK = out[:, :slots, 0, :width].reshape(*shape_BHTs, width)
    lse_BHTs = lse[:, 0, :slots].reshape(shape_BHTs)
    out_BHTLK, lse_BHTL = (restore_order(x, rounds.order_BHTs, rounds.slots_BHTL) for x in (out_BHTsK, lse_BHTs))
    parts = [(out_BHTLK[:, :, number].swapaxes(1, 2), lse_BHTL[:, :, number]) for number in range(layout.rounds)]
    return merge_partial_softmax(parts)


def chunk_pattern(layout: LSHLayout) -> ListedTiles:
    """Returns which slot of the sorted order reads which: its own chunk, and the chunk before it."""
    count = layout.chunk_count
    pairs = {(chunk, (chunk - back) % count) for chunk in range(count) for back in range(layout.previous_chunks + 1)}
    size = layout.size if count > 1 else -(-layout.size // BLOCKS[0]) * BLOCKS[0]
    return ListedTiles(size, tuple(number for pair in sorted(pairs) for number in pair))


def make_tokens(request: Request, rounds: HashRounds) -> Tokens:
    """Returns the numbers that the kernels read of the slots of each row, padded to whole tiles."""
    places_BHTs = rounds.order_BHTs.astype(jnp.int32)
    shape_BHTs, rows = places_BHTs.shape, int(np.prod(places_BHTs.shape[:3]))
    places = places_BHTs.reshape(rows, -1)
    runs = None if rounds.runs_BHTs is None else rounds.runs_BHTs.reshape(rows, -1).astype(jnp.int32)
    if runs is None and shape_BHTs[-1] % kernels.COMPUTED:
        runs = jnp.zeros_like(places)
    segments: tuple[Array | None, Array | None] = (None, None)
    if runs is not None:
        segments = jnp.where(runs == NO_RUN, -1, runs + 1), jnp.where(runs == NO_RUN, 0, runs + 1)
    bits: tuple[Array | None, Array | None] = (None, None)
    if request.dropout is not None:
        heads_H = request.global_indices('head')
        seeds_BH = hash_in_index(row_seeds(request.dropout.rng, shape_BHTs[0])[:, None], heads_H[None])
        bits_BHTs = hash_in_index(seeds_BH[:, :, None, None], places_BHTs)
        bits = bits_BHTs.reshape(rows, 1, -1), spread_index(places)
    arrays = ((places, 0), (places, 0), (segments[0], -1), (segments[1], 0), (bits[0], 0), (bits[1], 0))
    return Tokens(*(None if x is None else kernels.pad_to_tiles(x, x.ndim - 1, fill) for x, fill in arrays))


@jax.custom_vjp
def sort_vectors(x_BHLK: Array, order_BHTs: Array, slots_BHTL: Array) -> Float[Array, 'B H T s K']:
    """Returns vectors in the sorted order of each hash round."""
    del slots_BHTL
    sorted_vectors = take_along_rows(x_BHLK, order_BHTs.reshape(*order_BHTs.shape[:2], -1))
    return sorted_vectors.reshape(*order_BHTs.shape, x_BHLK.shape[3])


def sort_vectors_forward(x_BHLK: Array, order_BHTs: Array, slots_BHTL: Array) -> tuple[Array, Any]:
    """Returns the result of `sort_vectors`, and what its backward pass reads."""
    return sort_vectors(x_BHLK, order_BHTs, slots_BHTL), slots_BHTL


def sort_vectors_backward(slots_BHTL: Array, dout_BHTsK: Array) -> tuple[Array, None, None]:
    """Returns the gradient of the vectors: the sum over the rounds, in float32."""
    by_round = take_along_rows(dout_BHTsK, slots_BHTL).astype(jnp.float32)
    return by_round.sum(axis=2).astype(dout_BHTsK.dtype), None, None


sort_vectors.defvjp(sort_vectors_forward, sort_vectors_backward)


@jax.custom_vjp
def restore_order(
    x: Shaped[Array, 'B H T s *rest'], order_BHTs: Array, slots_BHTL: Array
) -> Shaped[Array, 'B H T L *rest']:
    """Returns results in the order of positions, for each hash round."""
    del order_BHTs
    return take_along_rows(x, slots_BHTL)


def restore_order_forward(x: Shaped[Array, 'B H T s *rest'], order_BHTs: Array, slots_BHTL: Array) -> tuple[Array, Any]:
    """Returns the result of `restore_order`, and what its backward pass reads."""
    return restore_order(x, order_BHTs, slots_BHTL), (order_BHTs, slots_BHTL.shape[-1])


def restore_order_backward(saved: Any, dout: Shaped[Array, 'B H T L *rest']) -> tuple[Array, None, None]:
    """Returns the gradient of the sorted results; slots after the last position have none."""
    order_BHTs, length = saved
    dx = take_along_rows(dout, order_BHTs)
    is_token_s = jnp.arange(order_BHTs.shape[-1]) < length
    return jnp.where(is_token_s.reshape(1, 1, 1, -1, *(1,) * (dx.ndim - 4)), dx, 0), None, None


restore_order.defvjp(restore_order_forward, restore_order_backward)
