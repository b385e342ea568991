"""The centroids of routing attention: finds the tokens nearest to each centroid,
and the sums that update the centroids.

Letters: C centroids of a head, w tokens that each of them takes; X the K coordinates of a vector and one more.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.device_mesh import map_over_shards
from efficient_attention.attention.einsum import float32_einsum

SMALLEST_VARIANCE = 1e-6  # added to a vector's variance, so that a vector of zeros stays zero
HIGHEST = jax.lax.Precision.HIGHEST


class CentroidScores(NamedTuple):
    """How near a row's queries, or its keys, are to each centroid; no gradient flows through these scores.

    Args:
        unit_BHLK: float32; the queries or keys as vectors on the unit sphere.
        products_BHCL: float32; products of the centroids with these vectors.
        valid_BL: which tokens are not padding; None: all.
    """

    unit_BHLK: Array
    products_BHCL: Array
    valid_BL: Array | None


def layer_norm(x_BLHK: Float[Array, 'B L H K']) -> Float[Array, 'B L H K']:
    """Returns each vector minus its mean, divided by its standard deviation, in float32, without scale or bias.

    The result has length sqrt(K).
    """
    x_BLHK = x_BLHK.astype(jnp.float32)
    x_BLHK = x_BLHK - x_BLHK.mean(axis=-1, keepdims=True)
    return x_BLHK * jax.lax.rsqrt(jnp.square(x_BLHK).mean(axis=-1, keepdims=True) + SMALLEST_VARIANCE)


def score_centroids(
    normal_BHLK: Float[Array, 'B H L K'], centroids_HCX: Float[Array, 'H C X'], valid_BL: Bool[Array, 'B L'] | None
) -> CentroidScores:
    """Returns how near each layer-normalised vector is to each centroid: their products, divided by sqrt(K)."""
    width = normal_BHLK.shape[-1]
    centroids_HCK = jax.lax.stop_gradient(centroids_HCX[..., :width])
    unit_BHLK = jax.lax.stop_gradient(normal_BHLK) * (1.0 / math.sqrt(width))
    products_BHCL = float32_einsum('HCK,BHLK->BHCL', centroids_HCK, unit_BHLK, HIGHEST)
    return CentroidScores(unit_BHLK, products_BHCL, valid_BL)


def nearest_tokens(near: CentroidScores, size: int) -> Int[Array, 'B H C w']:
    """Returns the indices of the `size` tokens nearest to each centroid, nearest first; padding comes last.

    Of two equally near tokens the earlier one comes first.
    """
    products_BHCL = near.products_BHCL
    if near.valid_BL is not None:
        products_BHCL = jnp.where(near.valid_BL[:, None, None], products_BHCL, MASKED)
    return top_k_indices(products_BHCL, min(size, products_BHCL.shape[-1]))


def top_k_indices(x_BHCL: Float[Array, 'B H C L'], count: int) -> Int[Array, 'B H C w']:
    """Returns the indices of the `count` largest numbers along axis L, largest first."""
    return map_over_shards(lambda x_BHCL: jax.lax.top_k(x_BHCL, count)[1], x_BHCL)


def centroid_statistics(near: CentroidScores) -> Float[Array, 'H C X']:
    """Returns for each centroid the sum and the number of all unit vectors nearest to it, over all batch rows."""
    products_BHCL, count = near.products_BHCL, near.products_BHCL.shape[2]
    numbers_BHCL = jax.lax.broadcasted_iota(jnp.int32, products_BHCL.shape, 2)
    is_largest_BHCL = products_BHCL == products_BHCL.max(axis=2, keepdims=True)
    nearest_BH1L = jnp.where(is_largest_BHCL, numbers_BHCL, count).min(axis=2, keepdims=True)
    is_nearest_BHCL = numbers_BHCL == nearest_BH1L
    if near.valid_BL is not None:
        is_nearest_BHCL &= near.valid_BL[:, None, None]
    counted_BHLX = jnp.pad(near.unit_BHLK, ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=1.0)
    return float32_einsum('BHCL,BHLX->HCX', is_nearest_BHCL.astype(jnp.float32), counted_BHLX, HIGHEST)


@jax.custom_vjp
def attach_centroid_statistics(
    out: Float[Array, '...'], centroids_HCX: Float[Array, 'H C X'], queries: CentroidScores, keys: CentroidScores
) -> Float[Array, '...']:
    """Returns `out` unchanged; its backward pass returns the centroid statistics of queries
    and keys as the centroids' gradient.

    The statistics therefore add up as gradients do: once per step, over devices, micro-batches, rows and layers that
    share centroids. An evaluation computes no statistics, and layers that are recomputed for their gradients
    count once.
    """
    del centroids_HCX, queries, keys
    return out


def _forward(
    out: Float[Array, '...'], centroids_HCX: Array, queries: CentroidScores, keys: CentroidScores
) -> tuple[Array, Array]:
    statistics_HCX = centroid_statistics(queries) + centroid_statistics(keys)
    return attach_centroid_statistics(out, centroids_HCX, queries, keys), statistics_HCX


def _backward(statistics_HCX: Array, gradient: Float[Array, '...']) -> tuple[Any, ...]:
    return gradient, statistics_HCX, None, None


attach_centroid_statistics.defvjp(_forward, _backward)
