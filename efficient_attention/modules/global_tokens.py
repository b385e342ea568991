"""Longformer's global attention for tokens that the data mark as global, such as the tokens of a question about a
document.

A global token attends to every token of its segment, and every token of the segment attends to it. Global queries use
separate projections for queries, keys and values. All other queries read the global tokens through the ordinary
projections. Source: Beltagy et al. 2020, arXiv 2004.05150, section 3.1, and its released code.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.attention.attend import attend_with_options
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.partial_softmax import merge_partial_softmax
from efficient_attention.attention.request import CallOptions
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.layer_constructors import linear

NOBODY = 0  # segment number of padding, which no query reads


class GlobalProjections(nnx.Module):
    """The separate query, key and value projections of global tokens (Beltagy et al. 2020, arXiv 2004.05150, section
    3.1).
    """

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs) -> None:
        inner, use_bias = config.heads * config.head_width, config.attention_bias
        self.query = linear(config, config.width, inner, rngs, axes='DI', use_bias=use_bias)
        self.key = linear(config, config.width, inner, rngs, axes='DI', use_bias=use_bias)
        self.value = linear(config, config.width, inner, rngs, axes='DI', use_bias=use_bias)

    def __call__(self, x_BLD: Array) -> tuple[Array, Array, Array]:
        """Returns the queries, keys and values [B, L, H x K] for global attention."""
        return self.query(x_BLD), self.key(x_BLD), self.value(x_BLD)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GlobalTokens:
    """The inputs of global attention: mask of global tokens [B, L], queries, keys and values [B, L, H, K], maximum
    number per row.
    """

    is_global_BL: Array
    query_BLHK: Array
    key_BLHK: Array
    value_BLHK: Array
    at_most: int = dataclasses.field(metadata={'static': True})


def attend_with_global(
    q_BLHK: Array,
    k_BLHK: Array,
    v_BLHK: Array,
    tokens: GlobalTokens,
    mechanism: Mechanism,
    segments_BL: Array,
    options: CallOptions,
) -> Array:
    """Returns softmax attention [B, L, H, K] over all pairs in the pattern and all pairs with a global token.

    Each pair counts once. Three calls compute it: every query over the pattern's non-global keys, every query over the
    global keys, and the global queries over all keys. The first two key sets are disjoint and merge by their
    log-sum-exps. The third call replaces the rows of global queries. A row with more global tokens than `at_most` gives
    NaN: their number depends on data, so no error can be raised.

    Args:
        q_BLHK: ordinary queries; `k_BLHK` and `v_BLHK` are the ordinary keys and values.
        tokens: the global tokens.
        mechanism: a Softmax.
        segments_BL: segment numbers, as in `attend`.
        options: the options of `attend`: dropout, PRNG keys, backend.
    """
    if not mechanism.capabilities.merges:
        raise NotImplementedError(f'global tokens need softmax attention over a pattern, not {mechanism}')
    tokens = dataclasses.replace(tokens, is_global_BL=tokens.is_global_BL & (segments_BL != 0))
    at_most = min(tokens.at_most, q_BLHK.shape[1])
    places_BT = jnp.argsort(~tokens.is_global_BL, axis=1, stable=True)[:, :at_most]
    is_used_BT = jnp.take_along_axis(tokens.is_global_BL, places_BT, axis=1)
    used_segments_BT = jnp.where(is_used_BT, jnp.take_along_axis(segments_BL, places_BT, axis=1), NOBODY)
    others_BL = jnp.where(tokens.is_global_BL, NOBODY, segments_BL)
    first, second, third = (dropout_options_of_call(options, number) for number in range(3))

    first = dataclasses.replace(first, query_segments=segments_BL, key_segments=others_BL, return_lse=True)
    local, local_lse = attend_with_options(q_BLHK, k_BLHK, v_BLHK, mechanism, first)
    k_BTHK, v_BTHK = gather_positions(k_BLHK, places_BT), gather_positions(v_BLHK, places_BT)
    second = dataclasses.replace(second, query_segments=segments_BL, key_segments=used_segments_BT, return_lse=True)
    of_global, global_lse = attend_with_options(q_BLHK, k_BTHK, v_BTHK, Softmax(), second)
    assert local_lse is not None and global_lse is not None  # not None, because both calls set `return_lse`
    out_BLHK, _ = merge_partial_softmax([(local, local_lse), (of_global, global_lse)])
    q_BTHK = gather_positions(tokens.query_BLHK, places_BT)
    third = dataclasses.replace(third, query_segments=jnp.maximum(used_segments_BT, 0), key_segments=segments_BL)
    rows_BTHK, _ = attend_with_options(q_BTHK, tokens.key_BLHK, tokens.value_BLHK, Softmax(), third)
    rank_BL = jnp.cumsum(tokens.is_global_BL, axis=1, dtype=jnp.int32) - 1
    global_BLHK = gather_positions(rows_BTHK, jnp.clip(rank_BL, 0, at_most - 1))
    out_BLHK = jnp.where(tokens.is_global_BL[..., None, None], global_BLHK, out_BLHK)
    has_too_many_B = tokens.is_global_BL.sum(axis=1) > at_most
    return jnp.where(has_too_many_B[:, None, None, None], jnp.full_like(out_BLHK, jnp.nan), out_BLHK)


def gather_positions(x_BLHK: Array, places_BT: Array) -> Array:
    """Returns the vectors at the given positions of each batch row, [B, T, H, K]."""
    return jnp.take_along_axis(x_BLHK, places_BT[:, :, None, None], axis=1)


def dropout_options_of_call(options: CallOptions, number: int) -> CallOptions:
    """Returns the options of `attend` for the call with this number, with a dropout key that no other call has."""
    rng = options.dropout_rng
    if rng is None:
        return options
    fold = jax.random.fold_in if rng.ndim == 0 else jax.vmap(jax.random.fold_in, in_axes=(0, None))
    return dataclasses.replace(options, dropout_rng=fold(rng, number))
