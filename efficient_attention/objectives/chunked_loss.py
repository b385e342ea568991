"""A loss without all logits: the logits of a few positions at a time, forward and backward.

The logits of a large vocabulary take V / D times the memory of the vectors that they come from; here only a chunk of
them exists, and the backward pass computes each chunk again (Kitaev et al. 2020, arXiv 2001.04451, section 3).
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
    """Sums over all positions, such as 'loss' and 'accuracy', of which `chunk` of each row are computed at a time.

    Args:
        sums_of: vectors [B, c, D], labels [B, c] and weights [B, c] to their float32 sums; may hold parameters, which
            get their gradients.
        hidden_BLD: the vectors.
        labels_BL: ids below V.
        weights_BL: how much each position counts.
        chunk: positions of each row at a time; 0, or L and more = all.
    """
    length = hidden_BLD.shape[1]
    if not chunk or chunk >= length:
        return sums_of(hidden_BLD, labels_BL, weights_BL)
    sums_of = jax.checkpoint(sums_of)

    def add(total: dict[str, Array], arrays: tuple[Array, Array, Array]) -> tuple[dict[str, Array], None]:
        return jax.tree.map(jnp.add, total, sums_of(*arrays)), None

    # Rows stay whole, so that a batch that is spread over devices stays where it is. What fills the last chunk up
    # weighs nothing.
    chunks = by_chunks(hidden_BLD, chunk), by_chunks(labels_BL, chunk), by_chunks(weights_BL, chunk)
    shapes = jax.eval_shape(sums_of, *(x[0] for x in chunks))
    return jax.lax.scan(add, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes), chunks)[0]


def by_chunks(x: Shaped[Array, 'B L ...'], chunk: int) -> Shaped[Array, 'n B c ...']:
    """[B, L, ...] to [chunks, B, chunk, ...], zeros after the end."""
    batch, length = x.shape[:2]
    chunks = -(-length // chunk)
    padded = jnp.pad(x, ((0, 0), (0, chunks * chunk - length), *((0, 0),) * (x.ndim - 2)))
    return padded.reshape(batch, chunks, chunk, *x.shape[2:]).swapaxes(0, 1)
