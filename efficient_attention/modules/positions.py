"""Computes position encodings: sinusoids, rotary positions, and axial positions with a learned table per axis.

A single learned table for all positions is an embedding (models/embeddings.py).
"""

import math
from collections.abc import Sequence

import jax.numpy as jnp
from flax import nnx
from jax import Array

from efficient_attention.config.layer import LayerConfig
from efficient_attention.modules.layer_constructors import embedding


class AxialPositions(nnx.Module):
    """Axial position embeddings: positions are arranged in a shape with several axes, and each axis has a learned
    table, [B, L] -> [B, L, E].

    Positions fill the shape row by row, the last axis fastest. By default the axes' vectors are concatenated, and E is
    the sum of `widths` (Reformer: Kitaev et al. 2020, arXiv 2001.04451, released code). With `is_sum` they are added,
    and all `widths` are E (Sparse Transformer: Child et al. 2019, arXiv 1904.10509, section 5.3). Tables are
    initialised with `init_std` like all other tables, so positions weigh as much as tokens. Reformer's code uses a
    standard deviation of 1.
    """

    def __init__(
        self, config: LayerConfig, shape: Sequence[int], widths: Sequence[int], *, is_sum: bool, rngs: nnx.Rngs
    ) -> None:
        self.shape = tuple(shape)
        self.is_sum = is_sum
        tables = [embedding(config, size, width, rngs) for size, width in zip(shape, widths, strict=True)]
        self.tables = nnx.List(tables)

    def __call__(self, positions_BL: Array) -> Array:
        """Returns the axial embeddings of these positions; NaN for positions that the axes do not cover."""
        vectors = []
        for axis, table in enumerate(self.tables):
            place_BL = positions_BL // math.prod(self.shape[axis + 1 :])
            # The first axis uses no modulo, so that positions beyond the shape exceed its table and give NaN.
            vectors.append(table(place_BL % self.shape[axis] if axis else place_BL))
        return sum(vectors[1:], vectors[0]) if self.is_sum else jnp.concatenate(vectors, axis=-1)


def position_angles(positions: Array, frequencies: int, base: float = 10_000.0) -> Array:
    """Returns the angles of position encodings: position / base^(i / frequencies) radians for i = 0, 1, ..., float32
    [..., frequencies].
    """
    exponents = jnp.arange(frequencies, dtype=jnp.float32) / frequencies
    return positions.astype(jnp.float32)[..., None] * jnp.expand_dims(base**-exponents, range(positions.ndim))


def sinusoid(positions: Array, width: int) -> Array:
    """Returns sinusoidal position encodings, float32 [..., width]: all sines, then all cosines of the angles.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.5, which interleaves sines and cosines.
    """
    phase = position_angles(positions, width // 2)
    return jnp.concatenate([jnp.sin(phase), jnp.cos(phase)], axis=-1)


def apply_rotary_positions(x_BLHK: Array, positions_BL: Array) -> Array:
    """Returns queries or keys with rotary positions: each pair (i, i + K/2) of a head is rotated by the angle of its
    position.

    The dot product of two rotated vectors depends only on the difference of their positions. The rotation is computed
    in float32. Source: Su et al. 2021, arXiv 2104.09864, section 3.2.
    """
    half = x_BLHK.shape[-1] // 2
    phase_BL1F = position_angles(positions_BL, half)[:, :, None]
    first, second = x_BLHK[..., :half].astype(jnp.float32), x_BLHK[..., half:].astype(jnp.float32)
    turned = [
        first * jnp.cos(phase_BL1F) - second * jnp.sin(phase_BL1F),
        second * jnp.cos(phase_BL1F) + first * jnp.sin(phase_BL1F),
    ]
    return jnp.concatenate(turned, axis=-1).astype(x_BLHK.dtype)
