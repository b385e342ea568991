"""REINFORCE: a surrogate loss with the gradient of an expected loss with respect to sampled choices.

    d E[loss] = E[d loss + sum over samples of (loss that follows the sample - baseline) d log p(sample)]

Williams 1992; for attention Xu et al. 2015, arXiv 1502.03044, equation 11. A baseline that does not depend on a row's
samples lowers the variance without changing the mean. Here the baseline is the mean of the other rows' losses, instead
of Xu's moving average. So no state passes from step to step.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def surrogate(log_probability_BL: Array, loss_BL: Array, segments_BL: Array) -> Float[Array, '']:
    """Returns a term of value 0 whose gradient is the REINFORCE gradient of sampled choices.

    This gradient is the second term of the formula above, the gradient of the expected loss.

    Args:
        log_probability_BL: of the samples at each position, summed over layers and heads.
        loss_BL: of each target, times its weight. Losses at a sample's position and later positions follow the sample.
        segments_BL: 0 = padding; a sample affects only losses of its text.
    """
    following_BL = losses_to_go(jax.lax.stop_gradient(loss_BL), segments_BL)
    is_text_BL = segments_BL != 0
    advantage_BL = jnp.where(is_text_BL, following_BL - leave_one_out_mean(following_BL, is_text_BL), 0.0)
    return (advantage_BL * (log_probability_BL - jax.lax.stop_gradient(log_probability_BL))).sum()


def losses_to_go(loss_BL: Array, segments_BL: Array) -> Float[Array, 'B L']:
    """Returns, for each position, the sum of its text's losses at this position and all later positions."""
    is_same_BLM = segments_BL[:, :, None] == segments_BL[:, None, :]
    places = jnp.arange(loss_BL.shape[1])
    is_behind_1LM = (places[:, None] <= places[None])[None]
    return jnp.where(is_same_BLM & is_behind_1LM, loss_BL[:, None], 0.0).sum(axis=-1)


def leave_one_out_mean(x_BL: Array, is_text_BL: Array) -> Float[Array, 'B L']:
    """Returns, for each position, the mean over the other batch rows that have a token there; 0 if no other row has a
    token there.
    """
    kept_BL, count_BL = jnp.where(is_text_BL, x_BL, 0.0), is_text_BL.astype(jnp.float32)
    others_BL = count_BL.sum(axis=0, keepdims=True) - count_BL
    return (kept_BL.sum(axis=0, keepdims=True) - kept_BL) / jnp.maximum(others_BL, 1.0)
