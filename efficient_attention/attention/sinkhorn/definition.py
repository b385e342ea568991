"""Defines Sinkhorn attention: softmax over the keys of a query's own block and of the block that a learned sort moves
to the same place in the row.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from efficient_attention.attention.dense_attention import dropout_slot_weights, masked_softmax, slot_softmax
from efficient_attention.attention.mechanism import (
    Capabilities,
    KeyAccess,
    LearnedOperand,
    Mechanism,
    Randomness,
    Requirements,
    ensure_kind,
)
from efficient_attention.attention.request import QueryKeyPair, Request
from efficient_attention.attention.single_text_rows import (
    check_single_text_rows,
    mask_queries_without_keys,
    repeat_key_heads,
    valid_keys,
)
from efficient_attention.attention.sinkhorn.sorting import (
    block_vectors,
    gumbel_noise,
    sinkhorn_balance,
    sort_logits,
    split_into_blocks,
)
from efficient_attention.errors import (
    is_number,
    require,
    require_at_least,
    require_truth_values,
)

HIGHEST = jax.lax.Precision.HIGHEST
# A mixed key counts as empty if the shares of its tokens sum to less than this number.
# Division by a smaller sum could give gradients beyond float32. A partly filled last block has such small sums.
SMALLEST_TOTAL = 1e-12


@dataclasses.dataclass(frozen=True)
class Sinkhorn(Mechanism):
    """Softmax attention over the keys of two blocks: the query's own block, and the block that a learned sort moves to
    the same place in the row.

    Place i of the sorted row mixes the row's blocks j slot by slot, with shares S_ij. The rows and columns of S sum to
    1 as far as S is balanced. S comes from logits R_i = (sum of block i's keys) W with a learned W. In training, where
    a call gives `rng`, Gumbel noise is added to the logits. Logits and noise are divided by the temperature. A slot
    mixes only tokens: padding has no share, and the shares of the others are divided by their sum, so that weights sum
    to 1. Blocks are counted from the start of the row.

    In the causal form, place i mixes only earlier blocks. A softmax over their logits replaces S, whose columns would
    leak later blocks. R_i comes from the keys up to the first key of block i. The first block reads itself.

    Source: Tay et al. 2020, arXiv 2002.11296, sections 3.1 to 3.3. In the paper the sort reads the layer's input
    through two layers. Here it reads each head's keys, a projection of that input, through one layer.

    Args:
        block: tokens of a block.
        blocks: largest number of blocks of a row, for which W has columns.
        iterations: number of balancing iterations, each over rows and then over columns; the causal form has none.
        temperature: divides logits and noise.
        cut: all queries read only the first `cut` blocks of the sorted row (SortCut), counting places whose own block
            has a token. 0 = each query reads its own block and the sorted block in its place.
        causal: no query reads a later key.
    """

    name = 'sinkhorn'
    # Dropout acts on the weights of mixed keys, because such a weight belongs to several original keys.
    capabilities = Capabilities(drops_slots=True, why_no_decoding='it has no cache of earlier blocks')
    key_access = KeyAccess(other_sequence=False)  # a query also reads the keys of its own block
    randomness = Randomness(noise=True)  # Gumbel noise on the sort's logits

    block: int = 64
    blocks: int = 8
    iterations: int = 8
    temperature: int | float = 0.75
    cut: int = 0
    causal: bool = False

    def __post_init__(self) -> None:
        for name in ('block', 'blocks', 'iterations'):
            require_at_least(1, f'sinkhorn {name}', getattr(self, name))
        heat = self.temperature
        require(is_number(heat) and 0.0 < heat < math.inf, 'sinkhorn temperature', heat, 'a number above 0')
        object.__setattr__(self, 'temperature', float(heat))
        require_at_least(0, 'sinkhorn cut', self.cut)
        require(self.cut <= self.blocks, 'sinkhorn cut', self.cut, f'at most {self.blocks}, its blocks')
        require_truth_values('sinkhorn', causal=self.causal)
        allowed = f'{Sinkhorn.iterations} in the causal form, which needs no balancing; leave it out'
        require(
            not self.causal or self.iterations == Sinkhorn.iterations, 'sinkhorn iterations', self.iterations, allowed
        )
        allowed = '0 in the causal form: sorted blocks that all queries read would leak later tokens'
        require(not (self.cut and self.causal), 'sinkhorn cut', self.cut, allowed)

    @functools.cached_property
    def requirements(self) -> Requirements:
        """Requires rows of one text, because the sort mixes blocks of a row;
        only the causal form compares positions.
        """
        return Requirements(positions=self.causal, whole_rows=True, longest=self.block * self.blocks)

    def learned_operands(self, heads: int, width: int) -> dict[str, LearnedOperand]:
        """Returns the declaration of the learned matrix W [H, K, blocks] of the sort;
        its initial scale gives logits near 1 for unit-sized keys.
        """
        return {'sort': LearnedOperand((heads, width, self.blocks), 1.0 / math.sqrt(self.block * width))}


class BlockSort(NamedTuple):
    """The result of the learned sort of blocks: the share of each block at each place of the sorted row, and which
    sorted positions mix any token.

    Args:
        shares_BHij: float32; share of block j at place i, summing to 1 over the row's blocks, or to 0.
        total_BHis: float32; the sum of the shares whose block has a token in the slot. A mix of tokens is divided by
            this sum. [..., 1] if the sum is the same for all slots, None if it is 1 everywhere.
    """

    shares_BHij: Array
    total_BHis: Array | None


def check_request(request: Request) -> None:
    """Raises a NotImplementedError for options of an attention request that Sinkhorn attention does not support."""
    queries, keys = request.query.shape[1], request.key.shape[1]
    is_moved = ensure_kind(Sinkhorn, request.mechanism).causal and not request.has_default_positions
    lacks = {
        f'cross attention: {queries} queries and {keys} keys': queries != keys,
        'causal form for other positions than 0, 1, ...': is_moved,
    }
    check_single_text_rows(request, **lacks)


def pad_to_whole_blocks(request: Request) -> Request:
    """Returns the attention request with its rows padded to a multiple of the block size; unchanged if the rows already
    are whole blocks.
    """
    batch, length = request.query.shape[:2]
    if not (extra := -length % ensure_kind(Sinkhorn, request.mechanism).block):
        return request
    ones_BL = jnp.ones((batch, length), jnp.int32)
    segments = (jnp.pad(x, ((0, 0), (0, extra))) for x in request.segments or (ones_BL, ones_BL))
    vectors = (request.query, request.key, request.value)
    query, key, value = (jnp.pad(x, ((0, 0), (0, extra), (0, 0), (0, 0))) for x in vectors)
    positions_1L = np.arange(length + extra, dtype=np.int32)[None]
    request = dataclasses.replace(
        request, query=query, key=key, value=value, segments=QueryKeyPair(*segments), lengths=None
    )
    return dataclasses.replace(request, positions=QueryKeyPair(positions_1L, positions_1L))


def key_blocks(x_BMGK: Float[Array, 'B M G K'], request: Request) -> Float[Array, 'B H n s K']:
    """Returns the keys or values of each query head cut into blocks of tokens."""
    x_BMHK = repeat_key_heads(x_BMGK, request.query.shape[2])
    return split_into_blocks(x_BMHK, ensure_kind(Sinkhorn, request.mechanism).block)


def valid_slots(request: Request) -> Bool[Array, 'B n s'] | None:
    """Returns which positions of each row's blocks hold tokens and not padding; None means all positions."""
    valid_BM, size = valid_keys(request), ensure_kind(Sinkhorn, request.mechanism).block
    return None if valid_BM is None else valid_BM.reshape(len(valid_BM), -1, size)


def sort_blocks(request: Request, key_BHnsK: Float[Array, 'B H n s K']) -> BlockSort:
    """Sorts the blocks of each row: returns each block's share at each place of the sorted row. The request's rows must
    be whole blocks.
    """
    mechanism, valid_Bns = ensure_kind(Sinkhorn, request.mechanism), valid_slots(request)
    batch, _, blocks = key_BHnsK.shape[:3]
    logits_BHij = sort_logits(block_vectors(key_BHnsK, causal=mechanism.causal), request.learned_operand('sort'))
    if request.rng is not None:
        logits_BHij = logits_BHij + gumbel_noise(request.rng, batch, request.global_indices('head'), blocks)
    logits_BHij = logits_BHij / mechanism.temperature
    is_there_bn = jnp.ones((1, blocks), bool) if valid_Bns is None else valid_Bns.any(axis=2)
    if mechanism.causal:
        allowed_b1ij = jnp.tri(blocks, k=-1, dtype=bool)[None, None] & is_there_bn[:, None, None, :]
        shares_BHij, _ = masked_softmax(logits_BHij, allowed_b1ij)
    else:
        logits_BHij = sinkhorn_balance(logits_BHij, is_there_bn, mechanism.iterations)
        allowed_b1ij = is_there_bn[:, None, :, None] & is_there_bn[:, None, None, :]
        shares_BHij = slot_softmax(logits_BHij, None if valid_Bns is None else allowed_b1ij)
    if mechanism.cut:
        shares_BHij = first_sorted_shares(shares_BHij, None if valid_Bns is None else is_there_bn, mechanism.cut)
    if valid_Bns is not None:
        valid_Bjs = valid_Bns.astype(jnp.float32)
        total_BHis = jnp.einsum('BHij,Bjs->BHis', shares_BHij, valid_Bjs, precision=HIGHEST)
        return BlockSort(shares_BHij, jnp.where(total_BHis < SMALLEST_TOTAL, 0.0, total_BHis))
    return BlockSort(shares_BHij, shares_BHij.sum(axis=-1, keepdims=True) if mechanism.causal else None)


def first_sorted_shares(
    shares_BHij: Array, is_there_bn: Bool[Array, 'b n'] | None, cut: int
) -> Float[Array, 'B H c j']:
    """Returns each block's share at the first `cut` places of the sorted row; skips a place if the block with the same
    number holds no token.
    """
    if is_there_bn is None:
        return shares_BHij[:, :, :cut]
    places_bc = jnp.argsort(~is_there_bn, axis=1, stable=True)[:, :cut]
    return jnp.take_along_axis(shares_BHij, places_bc[:, None, :, None], axis=2)


def readable_slots(request: Request, total_BHis: Float[Array, 'B H i _'] | None) -> Bool[Array, 'b h L R'] | None:
    """Returns which keys each query may read: first the keys of its own block,
    then the mixed keys of sorted blocks; None means all keys.

    The request's rows must be whole blocks.
    """
    mechanism, valid_Bns, length = (
        ensure_kind(Sinkhorn, request.mechanism),
        valid_slots(request),
        request.query.shape[1],
    )
    if total_BHis is None:
        return None
    size, (batch, heads, places) = mechanism.block, total_BHis.shape[:3]
    is_sorted_BHis = jnp.broadcast_to(total_BHis > 0.0, (batch, heads, places, size))
    if mechanism.cut:
        return is_sorted_BHis.reshape(batch, heads, 1, places * size)
    own_bntu = jnp.ones((1, 1, 1, size), bool) if valid_Bns is None else valid_Bns[:, :, None]
    if mechanism.causal:
        own_bntu = own_bntu & jnp.tri(size, dtype=bool)[None, None]
    shape = batch, heads, places, size, size
    own_BHntu = jnp.broadcast_to(own_bntu[:, None], shape)
    sorted_BHntu = jnp.broadcast_to(is_sorted_BHis[:, :, :, None], shape)
    return jnp.concatenate([own_BHntu, sorted_BHntu], axis=-1).reshape(batch, heads, length, 2 * size)


def weights(request: Request) -> tuple[Float[Array, 'B H L M'], None]:
    """Returns Sinkhorn attention's dense weights of the original keys,
    after dropout of the weights of keys and mixed keys.

    A key's weight is the weight of its own slot plus the weights of sorted slots times its shares in them.
    """
    check_request(request)
    mechanism, length, whole = (
        ensure_kind(Sinkhorn, request.mechanism),
        request.query.shape[1],
        pad_to_whole_blocks(request),
    )
    query_BHnsK = split_into_blocks(whole.query, mechanism.block).astype(jnp.float32) / math.sqrt(whole.query.shape[3])
    key_BHnsK = key_blocks(whole.key, whole).astype(jnp.float32)
    batch, heads, blocks, size, _ = key_BHnsK.shape
    shares_BHij, total_BHis = sort_blocks(whole, key_BHnsK)
    shares_BHijs = slot_shares(shares_BHij, total_BHis, valid_slots(whole), size)
    sorted_BHisK = jnp.einsum('BHijs,BHjsK->BHisK', shares_BHijs, key_BHnsK, precision=HIGHEST)
    if mechanism.cut:
        logits = jnp.einsum('BHnsK,BHitK->BHnsit', query_BHnsK, sorted_BHisK, precision=HIGHEST)
    else:
        slots_BHntK = jnp.concatenate([key_BHnsK, sorted_BHisK], axis=3)
        logits = jnp.einsum('BHnsK,BHntK->BHnst', query_BHnsK, slots_BHntK, precision=HIGHEST)
    logits_BHLR = logits.reshape(batch, heads, blocks * size, -1)
    allowed = readable_slots(whole, total_BHis)
    weights_BHLR, _ = masked_softmax(logits_BHLR, jnp.ones((1, 1, 1, 1), bool) if allowed is None else allowed)
    weights_BHLR = dropout_slot_weights(weights_BHLR, whole)
    weights_BHLM = slot_to_key_weights(weights_BHLR, shares_BHijs, is_cut=bool(mechanism.cut))[:, :, :length, :length]
    return mask_queries_without_keys(weights_BHLM.swapaxes(1, 2), request).swapaxes(1, 2), None


def slot_shares(
    shares_BHij: Float[Array, 'B H i j'],
    total_BHis: Float[Array, 'B H i _'] | None,
    valid_Bjs: Bool[Array, 'B j s'] | None,
    size: int,
) -> Float[Array, 'B H i j s']:
    """Returns the share of each token in each mixed key of the sorted row;
    the shares of a mixed key sum to 1, or to 0 if it mixes no token.
    """
    shares_BHijs = jnp.broadcast_to(shares_BHij[..., None], (*shares_BHij.shape, size))
    if valid_Bjs is not None:
        shares_BHijs = jnp.where(valid_Bjs[:, None, None], shares_BHijs, 0.0)
    if total_BHis is None:
        return shares_BHijs
    return shares_BHijs / jnp.where(total_BHis > 0.0, total_BHis, 1.0)[:, :, :, None]


def slot_to_key_weights(
    weights_BHLR: Float[Array, 'B H L R'], shares_BHijs: Float[Array, 'B H i j s'], *, is_cut: bool
) -> Float[Array, 'B H L M']:
    """Converts weights of keys and mixed keys to weights of the original keys,
    through the share of each key in each mixed key.
    """
    batch, heads, places, blocks, size = shares_BHijs.shape
    if is_cut:
        weights_BHLis = weights_BHLR.reshape(batch, heads, blocks * size, places, size)
        weights_BHLjs = jnp.einsum('BHLis,BHijs->BHLjs', weights_BHLis, shares_BHijs, precision=HIGHEST)
        return weights_BHLjs.reshape(batch, heads, blocks * size, blocks * size)
    own_BHnts, sorted_BHnts = jnp.split(weights_BHLR.reshape(batch, heads, blocks, size, 2 * size), 2, axis=-1)
    weights_BHntjs = sorted_BHnts[:, :, :, :, None] * shares_BHijs[:, :, :, None]
    is_own_nj = jnp.eye(blocks, dtype=jnp.float32)[None, None, :, None, :, None]
    weights_BHntjs = weights_BHntjs + own_BHnts[:, :, :, :, None] * is_own_nj
    return weights_BHntjs.reshape(batch, heads, blocks * size, blocks * size)


def multiply_adds(mechanism: Sinkhorn, length: int, heads: int, width: int) -> int:
    """Returns Sinkhorn attention's multiply-adds for one row: logits of the sort, mixed blocks, and attention of
    queries to the keys that they read.

    Slots that fill up the last block count as tokens and add a product for their mask.
    """
    size, blocks = mechanism.block, -(-length // mechanism.block)
    sorted_blocks = min(mechanism.cut, blocks) if mechanism.cut else blocks
    logits = blocks**2 * width
    mixes = 2 * sorted_blocks * blocks * size * width
    if length % size:
        mixes += sorted_blocks * blocks * size
    slots = sorted_blocks * size if mechanism.cut else 2 * size
    return heads * (logits + mixes + 2 * blocks * size * slots * width)
