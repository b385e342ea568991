"""Computes learning-rate schedules with warm-up, by formulas in this file instead of Optax's schedules.

Reasons why Optax's schedules, such as `join_schedules` of a rise and a decay, are not used:

- 'bert': no decay of Optax counts its steps from before the join; the learning rate drops at the join.
- 'rsqrt': Optax has no inverse square root.
- 'linear', 'cosine', 'constant': Optax has the same formulas (a test compares them) but rounds differently. With peak
  1e-4 and 100 warm-up steps, 405, 216 and 60 of 1,000 steps differ. With Optax, a run resumed from an older
  checkpoint would no longer equal the unbroken run bit for bit.

A schedule is a function of the number of updates made before the current one. The first update of a run uses
`schedule(0)`, the last one `schedule(total_steps - 1)`. With a warm-up, the first update thus has learning rate 0, as
in BERT's code, where the global step is 0. A decay stops one step before its end value, which it has at `total_steps`.
"""

import jax
import jax.numpy as jnp
import optax

from efficient_attention.config.optimizer import OptimizerConfig
from efficient_attention.config.value_checks import check_in_interval


def make_schedule(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
    """Returns the learning-rate schedule: a function from the number of updates made so far, int or int32 [], to the
    learning rate, float32 [].

    All schedules rise linearly, peak * step / warmup_steps, while step < warmup_steps. After that, with
    progress = (step - warmup_steps) / (total_steps - warmup_steps) and end = peak * end_learning_rate_ratio:

    - 'bert': end + (peak - end) * (1 - step / total_steps), as in the published code of BERT and ALBERT. The decay
      counts from step 0. If end = 0, the rate drops at the join from peak to peak * (1 - warmup_steps / total_steps).
    - 'linear': end + (peak - end) * (1 - progress), continuous at the join.
    - 'cosine': end + (peak - end) * (1 + cos(pi * progress)) / 2.
    - 'constant': peak.
    - 'rsqrt': peak * sqrt(max(warmup_steps, 1) / max(step, warmup_steps, 1)), continuous (Vaswani et al. 2017, eq. 3).

    Steps past `total_steps` keep the end value; 'constant' and 'rsqrt' continue. If the warm-up is longer than the run,
    the rate never reaches the peak.

    Raises:
        InputError: total_steps is below 1.
    """
    check_in_interval('train.steps', total_steps, 1)
    decay = _DECAYS[config.schedule]

    def schedule(count: jax.typing.ArrayLike) -> jax.Array:
        step = jnp.asarray(count, jnp.float32)  # float32 represents step numbers exactly up to 2^24
        rising = config.learning_rate * step / max(config.warmup_steps, 1)
        return jnp.where(step < config.warmup_steps, rising, decay(config, total_steps, step))

    return schedule


def _bert_schedule(config: OptimizerConfig, total_steps: int, step: jax.Array) -> jax.Array:
    return _interpolate_end_to_peak(config, 1 - jnp.minimum(step / total_steps, 1))


def _linear_schedule(config: OptimizerConfig, total_steps: int, step: jax.Array) -> jax.Array:
    return _interpolate_end_to_peak(config, 1 - _progress_after_warmup(config, total_steps, step))


def _cosine_schedule(config: OptimizerConfig, total_steps: int, step: jax.Array) -> jax.Array:
    return _interpolate_end_to_peak(
        config, (1 + jnp.cos(jnp.pi * _progress_after_warmup(config, total_steps, step))) / 2
    )


def _constant_schedule(config: OptimizerConfig, total_steps: int, step: jax.Array) -> jax.Array:
    del total_steps
    return jnp.full_like(step, config.learning_rate)


def _rsqrt_schedule(config: OptimizerConfig, total_steps: int, step: jax.Array) -> jax.Array:
    del total_steps
    first = max(config.warmup_steps, 1)
    return config.learning_rate * jnp.sqrt(first / jnp.maximum(step, first))


def _progress_after_warmup(config: OptimizerConfig, total_steps: int, step: jax.Array) -> jax.Array:
    """Returns which share of the steps after the warm-up is done, in [0, 1]."""
    return jnp.clip((step - config.warmup_steps) / max(total_steps - config.warmup_steps, 1), 0, 1)


def _interpolate_end_to_peak(config: OptimizerConfig, share: jax.Array) -> jax.Array:
    end = config.learning_rate * config.end_learning_rate_ratio
    return end + (config.learning_rate - end) * share


_DECAYS = {
    'bert': _bert_schedule,
    'linear': _linear_schedule,
    'cosine': _cosine_schedule,
    'constant': _constant_schedule,
    'rsqrt': _rsqrt_schedule,
}
