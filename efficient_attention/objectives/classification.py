"""Weighted cross-entropy and accuracy of logits against labels, as sums."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int


def classification_sums(
    logits: Float[Array, '*b C'], labels: Int[Array, '*b'], weights: Float[Array, '*b']
) -> dict[str, Array]:
    """Sums over all examples: 'loss' (nats) and 'accuracy' (correct ones), each example times its weight."""
    label_logits = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    losses = jax.nn.logsumexp(logits, axis=-1) - label_logits
    correct = (logits.argmax(axis=-1) == labels).astype(jnp.float32)
    return {'loss': (losses * weights).sum(), 'accuracy': (correct * weights).sum()}
