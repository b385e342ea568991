"""Computes a loss on chunks of positions, so that the logits of all positions are never in memory at once.

The logits of a large vocabulary take V / D times the memory of their hidden states. Here only one chunk of logits
exists at a time, and the backward pass recomputes each chunk (Kitaev et al. 2020, arXiv 2001.04451, section 3).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Shaped


def chunked_sums(
    sums_of: Callable[[Array, Array, Array], dict[str, Array]],
    hidden_BLD: Array,
    labels_BL: Array,
    weights_BL: Array,
    *,
    chunk: int,
) -> dict[str, Array]:
    """Returns sums over all positions, such as 'loss' and 'accuracy', computed on one chunk of positions at a time.

    Args:
        sums_of: function of vectors [B, c, D], labels [B, c] and weights [B, c] that returns float32 sums. It may close
            over parameters, which get gradients.
        hidden_BLD: the hidden states.
        labels_BL: ids below V.
        weights_BL: weight per position.
        chunk: positions per row and chunk; 0, or at least L = all.
    """
    length = hidden_BLD.shape[1]
    if not chunk or chunk >= length:
        return sums_of(hidden_BLD, labels_BL, weights_BL)
    sums_of = jax.checkpoint(sums_of)

    def add(total: dict[str, Array], arrays: tuple[Array, Array, Array]) -> tuple[dict[str, Array], None]:
        return jax.tree.map(jnp.add, total, sums_of(*arrays)), None

    # Chunks split positions, not rows, so sharded rows stay on their devices. Padding of the last chunk has weight 0.
    chunks = (
        split_into_position_chunks(hidden_BLD, chunk),
        split_into_position_chunks(labels_BL, chunk),
        split_into_position_chunks(weights_BL, chunk),
    )
    shapes = jax.eval_shape(sums_of, *(x[0] for x in chunks))
    return jax.lax.scan(add, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes), chunks)[0]


def split_into_position_chunks(x: Shaped[Array, 'B L ...'], chunk: int) -> Shaped[Array, 'n B c ...']:
    """Splits an array [rows, positions, ...] into chunks of positions, [chunks, rows, chunk length, ...]; pads the end
    with zeros."""
    batch, length = x.shape[:2]
    chunks = -(-length // chunk)
    padded = jnp.pad(x, ((0, 0), (0, chunks * chunk - length), *((0, 0),) * (x.ndim - 2)))
    return padded.reshape(batch, chunks, chunk, *x.shape[2:]).swapaxes(0, 1)
