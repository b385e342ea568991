"""Sorts the blocks of a row for Sinkhorn attention: computes a logit for each pair of a block and a place in the sorted
row, adds Gumbel noise, and balances the logits.

Letters: n blocks of a row, s slots of a block; i places of the sorted row, j the blocks that are mixed there.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.distributions.hard import gumbel_from_bits
from efficient_attention.attention.dropout import hash_in_indices, row_seeds

SORT_STREAM = 0x736F7274  # makes these random bits differ from dropout's random bits for the same random key
HIGHEST = jax.lax.Precision.HIGHEST


def split_into_blocks(x_BLHK: Float[Array, 'B L H K'], size: int) -> Float[Array, 'B H n s K']:
    """Returns the tokens of each head cut into blocks of `size` tokens; `size` must divide L."""
    batch, length, heads, width = x_BLHK.shape
    return x_BLHK.reshape(batch, length // size, size, heads, width).transpose(0, 3, 1, 2, 4)


def block_vectors(x_BHnsK: Float[Array, 'B H n s K'], *, causal: bool) -> Float[Array, 'B H n K']:
    """Returns one float32 vector per block: the sum of its tokens, or, if causal,
    of all tokens up to the first token of the block.

    Padding must be zeros.
    """
    x_BHnsK = x_BHnsK.astype(jnp.float32)
    sum_BHnK = x_BHnsK.sum(axis=3)
    if not causal:
        return sum_BHnK
    before_BHnK = jnp.pad(jnp.cumsum(sum_BHnK[:, :, :-1], axis=2), ((0, 0), (0, 0), (1, 0), (0, 0)))
    return before_BHnK + x_BHnsK[:, :, :, 0]


def sort_logits(vectors_BHnK: Float[Array, 'B H n K'], sort_HKN: Float[Array, 'H K N']) -> Float[Array, 'B H n n']:
    """Returns the logits [B, H, i, j] for sorting block j to place i: products of block vectors with the learned matrix
    W.
    """
    return jnp.einsum('BHiK,HKj->BHij', vectors_BHnK, sort_HKN[..., : vectors_BHnK.shape[2]], precision=HIGHEST)


def gumbel_noise(rng: Array, batch: int, head_H: Array, blocks: int) -> Float[Array, 'B H n n']:
    """Returns Gumbel noise for the sort's logits, which depends only on the random key
    and on row, head, place and block.

    A row thus gets the same noise for any padding. `rng` is one key, or one per row.
    """
    seeds_B = hash_in_indices(row_seeds(rng, batch), jnp.full(1, SORT_STREAM))[:, 0]
    return gumbel_from_bits(hash_in_indices(seeds_B, head_H, jnp.arange(blocks), jnp.arange(blocks)))


def sinkhorn_balance(
    logits_BHij: Float[Array, 'B H n n'], is_there_bn: Bool[Array, '#B n'], iterations: int
) -> Float[Array, 'B H n n']:
    """Returns the balanced log shares of the sort: logits from which the log-sum-exps of rows
    and columns are subtracted in turn.

    Missing blocks get about MASKED. The exponential S approaches a matrix whose rows and columns sum to 1. For the
    gradient, an iteration saves only the amounts subtracted from rows and columns. Source: Tay et al. 2020, arXiv
    2002.11296, section 3.1.2, after Sinkhorn 1964.
    """
    is_row_b1i1, is_column_b11j = is_there_bn[:, None, :, None], is_there_bn[:, None, None, :]
    logits_BHij = jnp.where(is_row_b1i1 & is_column_b11j, logits_BHij, MASKED)

    def step(lost: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        row_BHi1 = jax.nn.logsumexp(logits_BHij - lost[1], axis=-1, keepdims=True)
        row_BHi1 = jnp.where(is_row_b1i1, row_BHi1, 0.0)
        column_BH1j = jax.nn.logsumexp(logits_BHij - row_BHi1, axis=-2, keepdims=True)
        return (row_BHi1, jnp.where(is_column_b11j, column_BH1j, 0.0)), None

    nothing = jnp.zeros_like(logits_BHij[..., :1]), jnp.zeros_like(logits_BHij[..., :1, :])
    lost, _ = jax.lax.scan(jax.checkpoint(step, prevent_cse=False), nothing, length=iterations)
    return logits_BHij - lost[0] - lost[1]
