"""Means of neighbouring tokens, and the iterated inverse of the weights between them."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

HIGHEST = jax.lax.Precision.HIGHEST


def landmarks(
    x_BLHK: Float[Array, 'B L H K'], valid_BL: Bool[Array, 'B L'] | None, count: int
) -> tuple[Float[Array, 'B H m K'], Bool[Array, 'b 1 m']]:
    """Means over the valid tokens from number floor(j n / m) to before floor((j + 1) n / m) of n for each j below m,
    and which of these have any token."""
    batch, length, heads, width = x_BLHK.shape
    if valid_BL is None and length % count == 0:
        mean_BmHK = x_BLHK.reshape(batch, count, length // count, heads, width).mean(axis=2)
        return mean_BmHK.swapaxes(1, 2), jnp.ones((1, 1, count), bool)
    share_BLm = shares(jnp.ones((1, length), bool) if valid_BL is None else valid_BL, count)
    whole_BLm = jnp.broadcast_to(share_BLm, (batch, length, count))
    mean_BHmK = jnp.einsum('BLm,BLHK->BHmK', whole_BLm, x_BLHK, precision=HIGHEST)
    return mean_BHmK, (share_BLm > 0.0).any(axis=1)[:, None]


def shares(valid_BL: Bool[Array, 'B L'], count: int) -> Float[Array, 'B L m']:
    """What each token adds to each mean."""
    number_BL = jnp.cumsum(valid_BL, axis=1)  # from 1
    place_BL = (number_BL * count - 1) // jnp.maximum(number_BL[:, -1:], 1)
    is_mine_BLm = (place_BL[..., None] == jnp.arange(count)[None, None]) & valid_BL[..., None]
    mine_BLm = is_mine_BLm.astype(jnp.float32)
    return mine_BLm / jnp.maximum(mine_BLm.sum(axis=1, keepdims=True), 1.0)


def inverse(matrix_BHmm: Float[Array, 'B H m m'], iterations: int) -> Float[Array, 'B H m m']:
    """An approximate pseudo-inverse Z: from A^T / (|A|_1 |A|_inf), Z <- Z / 4 (13 I - A Z (15 I - A Z (7 I - A Z))).

    Source: Xiong et al. 2021, arXiv 2102.03902, section 3.2, after Razavi et al. 2014; norms are each matrix's own.
    """
    identity = jnp.eye(matrix_BHmm.shape[-1], dtype=jnp.float32)[None, None]
    size = jnp.abs(matrix_BHmm)
    norms = size.sum(axis=-2).max(axis=-1) * size.sum(axis=-1).max(axis=-1)
    start_BHmm = matrix_BHmm.swapaxes(-1, -2) / jnp.where(norms > 0.0, norms, 1.0)[..., None, None]

    def step(inverse_BHmm: Array, _: None) -> tuple[Array, None]:
        product = jnp.matmul(matrix_BHmm, inverse_BHmm, precision=HIGHEST)
        inner = 7.0 * identity - product
        inner = 15.0 * identity - jnp.matmul(product, inner, precision=HIGHEST)
        inner = 13.0 * identity - jnp.matmul(product, inner, precision=HIGHEST)
        return 0.25 * jnp.matmul(inverse_BHmm, inner, precision=HIGHEST), None

    return jax.lax.scan(step, start_BHmm, length=iterations)[0]
