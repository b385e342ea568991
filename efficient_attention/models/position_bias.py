"""Computes position biases that are added to attention logits: ALiBi's slopes, T5's distance buckets, TUPE's untied
positions.

All layers of a stack share one `PositionBias`. It returns a function of query and key indices. Backends evaluate this
function only for the pairs that they compute. So an [L, L] array exists only if the attention itself has one.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.tree_util import Partial
from jaxtyping import Int, Shaped

from efficient_attention.attention.einsum import float32_einsum
from efficient_attention.attention.softmax.backend_choice import may_hold_all_pairs
from efficient_attention.config.layer import BUCKETED, UNTIED
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.modules.layer_constructors import embedding, kernel_init, linear, make_norm
from efficient_attention.modules.layer_context import SharedTerms


class PositionBias(nnx.Module):
    """The position bias that the config selects ('alibi', 't5', 'tupe' or 'tupe_r'); `causal` means that no query reads
    a later key.

    'alibi' and 't5' depend only on index differences, so packed texts need no extra input. 'tupe' and 'tupe_r' depend
    on positions. They treat position 0 as [CLS] unless `relative_cls_reset` is False or the stack is causal; a decoder
    has no [CLS].
    """

    def __init__(self, config: ModelConfig, *, causal: bool, rngs: nnx.Rngs) -> None:
        self.config = config
        self.causal = causal
        is_untied = config.relative in UNTIED
        has_reset = is_untied and config.relative_cls_reset and not causal
        self.untied = UntiedPositions(config, rngs=rngs) if is_untied else None
        self.resets = nnx.Param(jnp.zeros((2, config.heads), jnp.float32)) if has_reset else None
        rows = config.relative_buckets + has_reset
        start = kernel_init(config, config.width**-0.5)  # the standard deviation in T5's code
        table_RH = start(rngs.params(), (rows, config.heads)) if config.relative in BUCKETED else None
        self.table = None if table_RH is None else nnx.Param(table_RH)

    def __call__(self, positions_BL: Array) -> Any:
        """Returns the position bias for rows with these positions, as `attend` takes it in its argument `bias`.

        The bias is a function of query and key indices. For 't5' with dense attention, it is an array [1, H, L, L],
        computed once for all layers.

        Raises:
            InputError: a row is longer than the table of 'tupe'.
        """
        length, config = positions_BL.shape[1], self.config
        if config.relative == 't5' and may_hold_all_pairs(config.attention_backend, length, length):
            return all_pairs_bias(self.by_difference(), length)
        if self.untied is not None and length > config.max_length:
            table = f'the position table, model.max_length {config.max_length}'
            raise InputError(f'a row of {length} positions is beyond {table}')
        return self.bias_function(positions_BL)

    def shared_terms(self, positions_BL: Array | None) -> SharedTerms:
        """Returns the position bias as a term that all layers share; without `positions_BL`, positions are the indices
        in a row.
        """
        return SharedTerms(bias=self.bias_function() if positions_BL is None else self(positions_BL))

    def bias_function(self, positions_BL: Array | None = None) -> Partial:
        """Returns the position bias as a function of query and key indices.

        Without `positions_BL`, indices are positions below `max_length`.
        """
        if self.config.relative == 'alibi':
            return Partial(Alibi(self.config.heads))
        if self.untied is None:
            return Partial(bias_of_differences, self.by_difference())
        query_BLHK, key_BLHK = self.untied(positions_BL)
        by_difference = None if self.table is None else self.by_difference()
        if self.resets is None or positions_BL is None:
            return Partial(untied_bias, UntiedBiasInputs(query_BLHK, key_BLHK, by_difference))
        is_first_BL = (positions_BL == 0).astype(jnp.float32)
        return Partial(untied_bias, UntiedBiasInputs(query_BLHK, key_BLHK, by_difference, is_first_BL, self.cls_bias()))

    def by_difference(self) -> Array:
        """Returns a table of the position bias, float32 [2 d + 1, H], with one row for each difference of key and query
        index from -d to d.

        The differences, key minus query index, are from -d to d = `relative_max_distance`.
        """
        assert self.table is not None
        count, most = self.config.relative_buckets, self.config.relative_max_distance
        return self.table[...][t5_bucket_numbers(np.arange(-most, most + 1), count, most, causal=self.causal)]

    def cls_bias(self) -> Array:
        """Returns TUPE's biases for [CLS], float32 [2, H]: from [CLS] to any key, and from any other query to [CLS].

        In a bidirectional bucket table, no difference uses the first row for later keys. This row holds the bias of
        [CLS] as a query. The row after all buckets holds the bias of [CLS] as a key.
        """
        assert self.resets is not None
        if self.table is None:
            return self.resets[...]
        count = self.config.relative_buckets
        return self.resets[...] + self.table[...][np.asarray([count // 2, count])]


class UntiedPositions(nnx.Module):
    """TUPE's queries and keys of positions, which do not depend on the tokens; all layers share their projections.

    Their product is (norm(p_i) U_Q + b_Q) (norm(p_j) U_K + b_K)^T / sqrt(2 K) per head. Source: Ke et al. 2020, arXiv
    2006.15595, equation 7, and its released code, which normalises p.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        inner = config.heads * config.head_width
        self.heads = config.heads
        self.position = embedding(config, config.max_length, config.width, rngs)
        self.norm = make_norm(config, config.width, rngs)
        self.query = linear(config, config.width, inner, rngs, axes='DI')
        self.key = linear(config, config.width, inner, rngs, axes='DI')

    def __call__(self, positions_BL: Array | None) -> tuple[Array, Array]:
        """Returns scaled queries and keys of the given positions, [B, L, H, K] each, or of all positions, [1,
        max_length, H, K].
        """
        table_LD = self.norm(self.position.table_vectors(jnp.float32))
        query_LI, key_LI = self.query(table_LD), self.key(table_LD)
        scale = 1.0 / math.sqrt(2.0 * query_LI.shape[1] / self.heads)

        def rows(x_LI: Array) -> Array:
            x_BLI = x_LI[None] if positions_BL is None else jnp.take(x_LI, positions_BL, axis=0)
            return x_BLI.reshape(*x_BLI.shape[:2], self.heads, -1)

        return rows(query_LI * scale), rows(key_LI)


class UntiedBiasInputs(NamedTuple):
    """Holds the arrays from which TUPE's position bias is computed: position queries and keys, a bias per index
    difference, and the biases of [CLS].

    All arrays are floats, because all of them get gradients.
    """

    query_BLHK: Array
    key_BLHK: Array
    by_difference_dH: Array | None = None
    is_first_BL: Array | None = None  # 1.0 at the first token of each text, 0.0 at all other tokens
    resets_2H: Array | None = None


@dataclasses.dataclass(frozen=True)
class Alibi:
    """The position bias of ALiBi: -slope x distance, with a slope per head (Press et al. 2021, arXiv 2108.12409,
    section 3).
    """

    heads: int

    def __call__(self, query_b1L1: Array, key_b11M: Array) -> Array:
        """Returns ALiBi's position bias for each pair of a query index and a key index, float32 [b, H, L, M]."""
        slopes_H = jnp.asarray(alibi_slopes(self.heads), jnp.float32)
        return -slopes_H[None, :, None, None] * abs(query_b1L1 - key_b11M).astype(jnp.float32)


def alibi_slopes(heads: int) -> list[float]:
    """Returns ALiBi's slope of each head: 2^(-8 h / H) for h = 1 ... H, if the number of heads H is a power of two.

    Otherwise the first heads use the slopes of the next lower power of two. The remaining heads use every second slope
    of the next higher power of two, starting with the first. This is the rule of the paper's released code.
    """
    below = 2 ** int(math.log2(heads))
    more = [2.0 ** (-8.0 * h / (2 * below)) for h in range(1, 2 * below, 2)]
    return [2.0 ** (-8.0 * h / below) for h in range(1, below + 1)] + more[: heads - below]


def t5_bucket_numbers(differences: np.ndarray, count: int, max_distance: int, *, causal: bool) -> np.ndarray:
    """Returns the T5 bucket of each difference of key and query index, int [...]. A bucket is a row number of the table
    of position biases.

    Half of the buckets hold one distance each. The others widen logarithmically up to `max_distance`, and the last
    bucket also holds larger distances. In a bidirectional stack, the upper half of the table is for keys after the
    query. In a causal stack the full table is for earlier keys, and later keys, which are masked, get bucket 0. Source:
    Raffel et al. 2019, arXiv 1910.10683, section 2.1, and its released code.
    """
    buckets = count if causal else count // 2  # number of buckets for each direction
    exact = buckets // 2
    distances = np.maximum(-differences, 0) if causal else abs(differences)
    steps = np.log(np.maximum(distances, 1) / exact) / math.log(max_distance / exact) * (buckets - exact)
    # Rounding errors can lower a whole number of steps slightly, for example at the distance 2 x `exact`.
    # Without the added 1e-9, `floor` would then give the next smaller number.
    wide = np.minimum(exact + np.floor(steps + 1e-9).astype(np.int32), buckets - 1)
    numbers = np.where(distances < exact, distances, wide)
    return numbers if causal else numbers + np.where(differences > 0, buckets, 0)


def bias_of_differences(by_difference_dH: Array, query_b1L1: Array, key_b11M: Array) -> Array:
    """Returns the position bias [b, H, L, M], looked up in a table by the difference of key and query index.

    Differences beyond the table use its first or last row.
    """
    most = by_difference_dH.shape[0] // 2
    rows_bLM = jnp.clip(key_b11M - query_b1L1, -most, most)[:, 0] + most
    return jnp.moveaxis(by_difference_dH.at[rows_bLM].get(mode='promise_in_bounds'), -1, 1)


def all_pairs_bias(by_difference_dH: Array, length: int) -> Array:
    """Returns the position bias of all pairs of indices 0 ... L - 1, [1, H, L, L], as `bias_of_differences` but without
    a gather.

    Each row of the result is the previous row, shifted by one. So the result is cut from repetitions of 2 L values.
    """
    most = by_difference_dH.shape[0] // 2
    rows = np.clip(np.arange(-length + 1, length), -most, most) + most
    values_HP = jnp.pad(by_difference_dH[rows].T, ((0, 0), (0, 1)))
    repeated = jnp.tile(values_HP, (1, length))[:, :-length]
    return repeated.reshape(-1, length, 2 * length - 1)[None, :, :, length - 1 :]


def untied_bias(places: UntiedBiasInputs, query_b1L1: Array, key_b11M: Array) -> Array:
    """Returns TUPE's position bias, float32 [B, H, L, M]: products of position queries and position keys, plus a bias
    that depends on the position difference.

    For [CLS] as query or key, a separate bias replaces both terms.
    """
    at_queries, at_keys = (functools.partial(vectors_at_positions, places=side) for side in (query_b1L1, key_b11M))
    values_BHLM = float32_einsum('BLHK,BMHK->BHLM', at_queries(places.query_BLHK), at_keys(places.key_BLHK))
    if places.by_difference_dH is not None:
        values_BHLM = values_BHLM + bias_of_differences(places.by_difference_dH, query_b1L1, key_b11M)
    if places.is_first_BL is None or places.resets_2H is None:
        return values_BHLM
    from_first, to_first = places.resets_2H[:, None, :, None, None]
    is_query_BL, is_key_BM = at_queries(places.is_first_BL) > 0.5, at_keys(places.is_first_BL) > 0.5
    values_BHLM = jnp.where(is_key_BM[:, None, None, :], to_first, values_BHLM)
    return jnp.where(is_query_BL[:, None, :, None], from_first, values_BHLM)


def vectors_at_positions(x: Shaped[Array, '...'], places: Int[Array, '...']) -> Shaped[Array, '...']:
    """Returns the vectors of `x` [B, L, ...] at the given positions.

    Positions have the shape [b, 1, n, 1] or [b, 1, 1, n]; the result has the shape [B or b, n, ...].

    Indices of tile padding are clipped.
    """
    places_bn = jax.lax.collapse(places, 1)
    if x.shape[0] == 1:
        return x[0].at[places_bn].get(mode='clip')
    index = places_bn.reshape(*places_bn.shape, *(1,) * (x.ndim - 2))
    return jnp.take_along_axis(x, index, axis=1, mode='clip')
