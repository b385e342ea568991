"""Sparse alternatives to softmax: sparsemax and entmax, whose weights are zero below a threshold, with their exact
gradient.

p = max((alpha - 1) z - tau, 0)^(1 / (alpha - 1)), with the tau for which p sums to 1. Sources: Martins & Astudillo
2016, arXiv 1602.02068 (alpha 2); Peters et al. 2019, arXiv 1905.05702 (alpha 1.5). The power 1 / (alpha - 1) is an
integer here.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.device_mesh import map_over_shards

Rows = Float[Array, '...']  # arrays of logits or weights, one distribution along the last axis
# Newton's method takes up to twelve steps in practice, and at most 32 for a row of a million entries.
# Each Newton step reduces (norm - 1) x slope, with the norm of `solve_threshold`, to a quarter or less.
MOST_STEPS = 48


def sparsemax(logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M']) -> tuple[Float[Array, 'B H L M'], None]:
    """Returns sparsemax attention weights max(z - tau, 0) of logits z
    (Martins & Astudillo 2016, arXiv 1602.02068, equation 2).
    """
    return entmax_weights(1, logits_BHLM, allowed_bhLM)


def entmax(logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M']) -> tuple[Float[Array, 'B H L M'], None]:
    """Returns 1.5-entmax attention weights max(z / 2 - tau, 0)^2 of logits z
    (Peters et al. 2019, arXiv 1905.05702, section 3.2).
    """
    return entmax_weights(2, logits_BHLM, allowed_bhLM)


def entmax_weights(
    power: int, logits_BHLM: Array, allowed_bhLM: Bool[Array, '#B #H #L #M']
) -> tuple[Float[Array, 'B H L M'], None]:
    """Returns alpha-entmax weights over the allowed keys, with alpha = 1 + 1 / power, and None as log-sum-exp."""
    masked_BHLM = jnp.where(allowed_bhLM, logits_BHLM.astype(jnp.float32), MASKED)
    return map_over_shards(functools.partial(entmax_rows, power), masked_BHLM), None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def entmax_rows(power: int, z: Rows) -> Rows:
    """Returns alpha-entmax along the last axis, over entries that are not `MASKED`;
    zeros if all entries are `MASKED`.
    """
    largest = z.max(axis=-1, keepdims=True)
    z = (z - largest) / power
    weights = jnp.maximum(z - solve_threshold(power, z), 0.0) ** power
    return jnp.where(largest <= MASKED / 2, 0.0, weights)


def solve_threshold(power: int, z: Rows) -> Rows:
    """Returns the entmax threshold tau [..., 1], for which the sum of max(z - tau, 0)^power is 1;
    the largest entry of each row of z must be 0.

    The power-th root of that sum is the norm of the entries above tau. It is convex in tau and falls. Newton's steps
    therefore come from below and never pass the solution. They are exact as soon as the entries above tau are found and
    are equal, or if the power is 1. A row whose step no longer changes it stays fixed, however many steps other rows
    need. The steps are a few sums over each row, which are cheaper than a sort.
    """

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        tau, _, number = state
        above = jnp.maximum(z - tau, 0.0)
        total = (above**power).sum(axis=-1, keepdims=True)
        slope = jnp.where(above > 0.0, above ** (power - 1), 0.0).sum(axis=-1, keepdims=True)
        norm = total ** (1.0 / power)
        better = tau + (norm - 1.0) / norm * total / slope
        return jnp.maximum(tau, better), (better > tau).any(), number + 1

    # No weight exceeds 1, so the threshold tau is at most 1 below the largest entry, which is 0.
    start = jnp.full((*z.shape[:-1], 1), -1.0), jnp.array(True), jnp.array(0)
    return jax.lax.while_loop(lambda state: state[1] & (state[2] < MOST_STEPS), step, start)[0]


def _forward(power: int, z: Rows) -> tuple[Rows, Rows]:
    weights = entmax_rows(power, z)
    return weights, weights


def _backward(power: int, weights: Rows, gradient: Rows) -> tuple[Rows]:
    """Returns the gradient of entmax's logits; the Jacobian is diag(s) - s s^T / sum s,
    where s = p^(2 - alpha) for the non-zero weights p.

    Powers of zero weights are not computed: their slope is infinite, and second derivatives would multiply it by zero.
    """
    has_weight = weights > 0.0
    s = jnp.where(has_weight, jnp.where(has_weight, weights, 1.0) ** (1.0 - 1.0 / power), 0.0)
    total = s.sum(axis=-1, keepdims=True)
    mean = (s * gradient).sum(axis=-1, keepdims=True) / jnp.where(total > 0.0, total, 1.0)
    return (s * (gradient - mean),)


entmax_rows.defvjp(_forward, _backward)
