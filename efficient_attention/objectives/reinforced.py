"""The gradient of an expected loss by what was drawn: the surrogate whose gradient REINFORCE's is.

    d E[loss] = E[d loss + sum over draws of (loss that follows the draw - baseline) d log p(draw)]

Williams 1992; for attention Xu et al. 2015, arXiv 1502.03044, equation 11. A baseline that does not depend on a row's
draws leaves the mean as it is and lowers the variance. Here it is the mean of the other rows' losses, in place of
Xu's moving average: nothing is kept from step to step.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def surrogate(log_probability_BL: Array, loss_BL: Array, segments_BL: Array) -> Float[Array, '']:
    """A number that is 0, whose gradient is the second part of that of the sum of losses.

    Args:
        log_probability_BL: of what was drawn at each position, summed over layers and heads.
        loss_BL: of each target, times its weight; a draw is followed by those at its position and behind it.
        segments_BL: 0 = padding; a draw changes the losses of its own text alone.
    """
    following_BL = losses_behind(jax.lax.stop_gradient(loss_BL), segments_BL)
    is_text_BL = segments_BL != 0
    advantage_BL = jnp.where(is_text_BL, following_BL - mean_of_others(following_BL, is_text_BL), 0.0)
    return (advantage_BL * (log_probability_BL - jax.lax.stop_gradient(log_probability_BL))).sum()


def losses_behind(loss_BL: Array, segments_BL: Array) -> Float[Array, 'B L']:
    """The sum of the losses of a text from each position on."""
    is_same_BLM = segments_BL[:, :, None] == segments_BL[:, None, :]
    places = jnp.arange(loss_BL.shape[1])
    is_behind_1LM = (places[:, None] <= places[None])[None]
    return jnp.where(is_same_BLM & is_behind_1LM, loss_BL[:, None], 0.0).sum(axis=-1)


def mean_of_others(x_BL: Array, is_text_BL: Array) -> Float[Array, 'B L']:
    """At each position the mean over the other rows that have a token there; 0 where there is none."""
    kept_BL, count_BL = jnp.where(is_text_BL, x_BL, 0.0), is_text_BL.astype(jnp.float32)
    others_BL = count_BL.sum(axis=0, keepdims=True) - count_BL
    return (kept_BL.sum(axis=0, keepdims=True) - kept_BL) / jnp.maximum(others_BL, 1.0)
