"""Computes a loss on chunks of positions, so that the logits of all positions are never in memory at once.

The logits of a large vocabulary take V / D times the memory of their hidden states. Here only one chunk of logits
exists at a time (Kitaev et al. 2020, arXiv 2001.04451, section 3). The loss is a plain sum over positions, so the
gradient of each chunk is known up to one common factor as soon as its logits are. The forward pass therefore computes
the gradients too, and no chunk of logits is computed twice.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Shaped

Chunks = tuple[Array, Array, Array]  # hidden states [n, B, c, D], labels [n, B, c] and weights [n, B, c] of n chunks


def chunked_sums(
    sums_of: Callable[[Array, Array, Array], dict[str, Array]],
    hidden_BLD: Array,
    labels_BL: Array,
    weights_BL: Array,
    *,
    chunk: int,
) -> dict[str, Array]:
    """Returns sums over all positions, such as 'loss' and 'accuracy', computed on one chunk of positions at a time.

    In chunks, only the sum 'loss' has gradients.

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
    # Chunks split positions, not rows, so sharded rows stay on their devices. Padding of the last chunk has weight 0.
    chunks = (
        split_into_position_chunks(hidden_BLD, chunk),
        split_into_position_chunks(labels_BL, chunk),
        split_into_position_chunks(weights_BL, chunk),
    )
    sums_of_arguments, parameters = jax.closure_convert(sums_of, *(x[0] for x in chunks))
    return sum_over_chunks(sums_of_arguments, parameters, chunks)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def sum_over_chunks(
    sums_of: Callable[..., dict[str, Array]], parameters: list[Array], chunks: Chunks
) -> dict[str, Array]:
    """Returns the sums over all chunks; `sums_of` takes the arrays of a chunk and the parameters."""

    def add(total: dict[str, Array], arrays: Chunks) -> tuple[dict[str, Array], None]:
        return jax.tree.map(jnp.add, total, sums_of(*arrays, *parameters)), None

    shapes = jax.eval_shape(sums_of, *(x[0] for x in chunks), *parameters)
    return jax.lax.scan(add, zeros_of(shapes), chunks)[0]


def sums_and_gradients(
    sums_of: Callable[..., dict[str, Array]], parameters: list[Array], chunks: Chunks
) -> tuple[dict[str, Array], Any]:
    """Returns the result of `sum_over_chunks`, and the gradients of the sum 'loss' with respect to the parameters,
    hidden states and weights.
    """

    def add(total: Any, arrays: Chunks) -> tuple[Any, tuple[Array, Array]]:
        hidden_BcD, labels_Bc, weights_Bc = arrays

        def loss(parameters: list[Array], hidden_BcD: Array, weights_Bc: Array) -> tuple[Array, dict[str, Array]]:
            sums = sums_of(hidden_BcD, labels_Bc, weights_Bc, *parameters)
            return sums['loss'], sums

        (_, sums), (dparameters, *rest) = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(
            parameters, hidden_BcD, weights_Bc
        )
        return jax.tree.map(jnp.add, total, (sums, dparameters)), tuple(rest)

    shapes = jax.eval_shape(sums_of, *(x[0] for x in chunks), *parameters)
    (sums, dparameters), (dhidden_nBcD, dweights_nBc) = jax.lax.scan(
        add, (zeros_of(shapes), zeros_of(parameters)), chunks
    )
    return sums, (dparameters, dhidden_nBcD, dweights_nBc)


def scale_gradients(_: Any, gradients: Any, cotangents: dict[str, Array]) -> tuple[Any, tuple[Array, None, Array]]:
    """Returns the gradients of parameters and chunks, from the gradients of the sum 'loss' and its cotangent."""
    dparameters, dhidden_nBcD, dweights_nBc = jax.tree.map(
        lambda leaf: (leaf.astype(jnp.float32) * cotangents['loss']).astype(leaf.dtype), gradients
    )
    return dparameters, (dhidden_nBcD, None, dweights_nBc)


sum_over_chunks.defvjp(sums_and_gradients, scale_gradients)


def zeros_of(shapes: Any) -> Any:
    """Returns a pytree of zeros with the shapes and dtypes of a pytree."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def split_into_position_chunks(x: Shaped[Array, 'B L ...'], chunk: int) -> Shaped[Array, 'n B c ...']:
    """Splits an array [rows, positions, ...] into chunks of positions, [chunks, rows, chunk length, ...]; pads the end
    with zeros."""
    batch, length = x.shape[:2]
    chunks = -(-length // chunk)
    padded = jnp.pad(x, ((0, 0), (0, chunks * chunk - length), *((0, 0),) * (x.ndim - 2)))
    return padded.reshape(batch, chunks, chunk, *x.shape[2:]).swapaxes(0, 1)
