"""Where a token stands: sinusoidal tables and rotary phases. Learned tables are an embedding (embeddings.py)."""

import jax.numpy as jnp
from jax import Array


def angles(positions: Array, frequencies: int, base: float = 10_000.0) -> Array:
    """float32 [..., frequencies]: position / base^(i / frequencies) radians, i = 0, 1, ..."""
    exponents = jnp.arange(frequencies, dtype=jnp.float32) / frequencies
    return positions.astype(jnp.float32)[..., None] * jnp.expand_dims(base**-exponents, range(positions.ndim))


def sinusoid(positions: Array, width: int) -> Array:
    """float32 [..., width]: all sines, then all cosines, of `angles`.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.5, which interleaves the two.
    """
    phase = angles(positions, width // 2)
    return jnp.concatenate([jnp.sin(phase), jnp.cos(phase)], axis=-1)


def rotate(x_BLHK: Array, positions_BL: Array) -> Array:
    """`x` with each pair (i, i + K/2) of a head turned by its position's angle (Su et al. 2021, arXiv 2104.09864,
    section 3.2).

    The dot product of two rotated vectors depends on the difference of their positions alone. Computed in float32.
    """
    half = x_BLHK.shape[-1] // 2
    phase_BL1F = angles(positions_BL, half)[:, :, None]
    first, second = x_BLHK[..., :half].astype(jnp.float32), x_BLHK[..., half:].astype(jnp.float32)
    turned = [
        first * jnp.cos(phase_BL1F) - second * jnp.sin(phase_BL1F),
        second * jnp.cos(phase_BL1F) + first * jnp.sin(phase_BL1F),
    ]
    return jnp.concatenate(turned, axis=-1).astype(x_BLHK.dtype)
