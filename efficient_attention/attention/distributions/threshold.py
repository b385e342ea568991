"""Distributions that are zero below a threshold: alpha-entmax by sorting, with its exact gradient.

p = max((alpha - 1) z - tau, 0)^(1 / (alpha - 1)), with the tau by which p sums to 1. Sources: Martins & Astudillo 2016,
arXiv 1602.02068 (alpha 2); Peters et al. 2019, arXiv 1905.05702 (alpha 1.5).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from efficient_attention.attention.weights import MASKED

Rows = Float[Array, '...']  # entries along the last axis
# The thresholds if the first k entries alone were above them, from means and sums of squares of these and from k.
Thresholds = Callable[[Array, Array, Array], Array]


def above_threshold(
    alpha: float, thresholds: Thresholds, logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M']
) -> tuple[Float[Array, 'B H L M'], None]:
    """The weights of alpha-entmax over the allowed keys; there is no log-sum-exp."""
    masked_BHLM = jnp.where(allowed_bhLM, logits_BHLM.astype(jnp.float32), MASKED)
    return entmax_rows(alpha, thresholds, masked_BHLM), None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def entmax_rows(alpha: float, thresholds: Thresholds, z: Rows) -> Rows:
    """alpha-entmax along the last axis over entries that are not `MASKED`; zeros where all are."""
    largest = z.max(axis=-1, keepdims=True)
    # 1 is the highest weight, so tau lies at most 1 below the largest entry: what is further below is not sorted.
    z = (z - largest) * (alpha - 1.0)
    is_candidate = z > -1.0
    tau = threshold(thresholds, jnp.where(is_candidate, z, -1.0), is_candidate.sum(axis=-1, keepdims=True))
    weights = jnp.where(is_candidate, jnp.maximum(z - tau, 0.0), 0.0) ** (1.0 / (alpha - 1.0))
    return jnp.where(largest > MASKED / 2, weights, 0.0)


def threshold(thresholds: Thresholds, z: Rows, candidates: Any) -> Rows:
    """tau of each row of entries in [-1, 0], of which the largest, as many as `candidates` [..., 1] says, count."""
    sorted_z = jnp.sort(z, axis=-1, descending=True)
    number = jnp.expand_dims(jnp.arange(1, z.shape[-1] + 1), range(z.ndim - 1))
    k = number.astype(jnp.float32)
    mean = jnp.cumsum(sorted_z, axis=-1) / k
    squares = jnp.cumsum(jnp.square(sorted_z), axis=-1) - k * jnp.square(mean)
    tau = thresholds(mean, squares, k)
    is_above = (tau <= sorted_z) & (number <= candidates)
    support = jnp.maximum(is_above.sum(axis=-1, keepdims=True), 1)
    return jnp.take_along_axis(tau, support - 1, axis=-1)


def _forward(alpha: float, thresholds: Thresholds, z: Rows) -> tuple[Rows, Rows]:
    weights = entmax_rows(alpha, thresholds, z)
    return weights, weights


def _backward(alpha: float, _: Thresholds, weights: Rows, gradient: Rows) -> tuple[Rows]:
    """The Jacobian is diag(s) - s s^T / sum s with s = p^(2 - alpha) on the support."""
    s = jnp.where(weights > 0.0, weights ** (2.0 - alpha), 0.0)
    total = s.sum(axis=-1, keepdims=True)
    mean = (s * gradient).sum(axis=-1, keepdims=True) / jnp.where(total > 0.0, total, 1.0)
    return (s * (gradient - mean),)


entmax_rows.defvjp(_forward, _backward)
