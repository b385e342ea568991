"""What masked kernels are multiplied by, from scores, with the gradient that each method gives to its scores."""

import jax
import jax.numpy as jnp
from jax import Array

# The hard concrete distribution of Louizos et al. 2018 (arXiv 1712.01312, section 4.1): beta, gamma and zeta.
TEMPERATURE, LOW, HIGH = 2.0 / 3.0, -0.1, 1.1
START = 2.197  # of its scores: sigmoid is 0.9
NO_DRAW = 1e-6  # how far uniform draws stay from 0 and 1


def straight_through(mask: Array, scores: Array) -> Array:
    """The mask as float32, whose gradient goes to the scores as it is (Bengio et al. 2013, arXiv 1308.3432)."""
    return jnp.float32(mask) + (scores - jax.lax.stop_gradient(scores))


def hard_concrete(scores: Array, uniform: Array | None) -> Array:
    """Gates in [0, 1], most of them at its ends; without draws those of an evaluation."""
    if uniform is None:
        open_share = jax.nn.sigmoid(scores)
    else:
        logit = jnp.log(uniform) - jnp.log1p(-uniform)
        open_share = jax.nn.sigmoid((logit + scores) / TEMPERATURE)
    return jnp.clip(open_share * (HIGH - LOW) + LOW, 0.0, 1.0)


def chance_of_opening(scores: Array) -> Array:
    """The probability that a gate of the hard concrete distribution is not 0."""
    return jax.nn.sigmoid(scores - TEMPERATURE * jnp.log(-LOW / HIGH))


def uniform_draws(rng: Array, shape: tuple[int, ...]) -> Array:
    """Numbers between 0 and 1, both excluded."""
    return jax.random.uniform(rng, shape, minval=NO_DRAW, maxval=1.0 - NO_DRAW)
