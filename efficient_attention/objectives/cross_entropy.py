"""Weighted cross-entropy and accuracy of logits against labels, as sums."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int
from optax.losses import softmax_cross_entropy_with_integer_labels as cross_entropy


def cross_entropy_sums(
    logits: Float[Array, '*b C'], labels: Int[Array, '*b'], weights: Float[Array, '*b']
) -> dict[str, Array]:
    """Sums over all examples: 'loss' (nats) and 'accuracy' (correct ones), each example times its weight."""
    correct = (logits.argmax(axis=-1) == labels).astype(jnp.float32)
    return {'loss': (cross_entropy(logits, labels) * weights).sum(), 'accuracy': (correct * weights).sum()}
