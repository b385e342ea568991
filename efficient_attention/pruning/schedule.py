"""How far pruning has gone at a step, by the cubic of Zhu and Gupta 2017 (arXiv 1710.01878, equation 1)."""

import jax.numpy as jnp
from jax import Array

from efficient_attention.config.prune import PruneConfig


def progress(config: PruneConfig, steps: int, step: Array | int) -> Array:
    """float32 from 0 to 1: what part of the way from nothing to the final share, threshold or penalty is done.

    1 - (1 - (step - begin) / (end - begin))^3, constant outside; with begin = end a jump.

    Args:
        config: `begin` and `end`, as shares of the run.
        steps: of the whole run.
        step: int32, steps that have been made.
    """
    begin, end = int(round(config.begin * steps, 6)), config.final_step(steps)  # 0.29 * 100 is a little below 29
    share = (jnp.float32(step) - begin) / max(end - begin, 1)
    rising = 1.0 - (1.0 - jnp.clip(share, 0.0, 1.0)) ** 3
    return jnp.where(jnp.asarray(step) >= end, 1.0, rising)
