"""Weighted losses of labelled examples as sums, and those of Optax's cross-entropy."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int
from optax.losses import softmax_cross_entropy_with_integer_labels as cross_entropy


def cross_entropy_sums(
    logits: Float[Array, '*b C'], labels: Int[Array, '*b'], weights: Float[Array, '*b']
) -> dict[str, Array]:
    """The sums of `weighted_sums` of the cross-entropy (nats) of logits against labels."""
    return weighted_sums(cross_entropy(logits, labels), is_best(logits, labels), weights)


def weighted_sums(
    losses: Float[Array, '*b'], is_correct: Bool[Array, '*b'], weights: Float[Array, '*b']
) -> dict[str, Array]:
    """Sums over all examples: 'loss' and 'accuracy' (correct ones), each example times its weight."""
    return {'loss': (losses * weights).sum(), 'accuracy': (is_correct.astype(jnp.float32) * weights).sum()}


def is_best(logits: Float[Array, '*b C'], labels: Int[Array, '*b']) -> Bool[Array, '*b']:
    """Whether the largest logit of each example is that of its label."""
    return logits.argmax(axis=-1) == labels
