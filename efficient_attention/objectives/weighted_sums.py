"""Weighted sums of the losses of examples, and of the correct ones among them."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int


def weighted_sums(
    losses: Float[Array, '*b'], is_correct: Bool[Array, '*b'], weights: Float[Array, '*b']
) -> dict[str, Array]:
    """Sums over all examples: 'loss' and 'accuracy' (correct ones), each example times its weight."""
    return {'loss': (losses * weights).sum(), 'accuracy': (is_correct.astype(jnp.float32) * weights).sum()}


def is_best(logits: Float[Array, '*b C'], labels: Int[Array, '*b']) -> Bool[Array, '*b']:
    """Whether the largest logit of each example is that of its label."""
    return logits.argmax(axis=-1) == labels
