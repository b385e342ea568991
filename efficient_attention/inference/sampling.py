"""Chooses the next token from logits: the most probable one, or a sample with temperature, top-k and top-p
(nucleus).
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.config.value_checks import check_in_interval


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Settings for sampling a token from logits: temperature, then top-k, then top-p, applied in this order.

    Args:
        temperature: logits are divided by the temperature; 0 takes the most probable token.
        top_k: at most this many of the most probable tokens may be sampled; 0 = any number.
        top_p: tokens may be sampled only from the nucleus, the fewest most probable tokens whose total probability
            reaches top_p (Holtzman et al. 2019, arXiv 1904.09751, section 3.1); 1 = all.

    Raises:
        InputError: a value is out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        check_in_interval('temperature', self.temperature, 0)
        check_in_interval('top_k', self.top_k, 0)
        check_in_interval('top_p', self.top_p, 0, 1, low_is_open=True)


class SamplingInputs(NamedTuple):
    """The seed and the mask of allowed token ids for sampling a text."""

    seed: Array | int
    may_follow_V: Array  # bool, True for token ids that may be sampled


def filter_logits(logits_BV: Array, sampling: Sampling) -> Array:
    """Returns float32 logits after temperature, top-k and top-p; excluded tokens are `MASKED`, and of equal logits the
    lower id is preferred.
    """
    if sampling.temperature == 0:
        is_best = jnp.arange(logits_BV.shape[1])[None] == logits_BV.argmax(axis=1, keepdims=True)
        return jnp.where(is_best, logits_BV, MASKED)
    # The largest logit becomes 0, so that a division by a very small temperature gives no positive infinity.
    logits_BV = (logits_BV - logits_BV.max(axis=1, keepdims=True)) / sampling.temperature
    if not sampling.top_k and sampling.top_p == 1:
        return logits_BV
    order_BV = jnp.argsort(-logits_BV, axis=1, stable=True)
    ranked_BV = jnp.take_along_axis(logits_BV, order_BV, axis=1)
    if sampling.top_k:
        ranked_BV = jnp.where(jnp.arange(ranked_BV.shape[1])[None] < sampling.top_k, ranked_BV, MASKED)
    if sampling.top_p < 1:
        probabilities_BV = jax.nn.softmax(ranked_BV, axis=1)
        before_BV = jnp.cumsum(probabilities_BV, axis=1) - probabilities_BV
        # The most probable token is always kept, because rounding errors could exclude it if top_p is tiny.
        is_kept = (before_BV < sampling.top_p) | (jnp.arange(ranked_BV.shape[1])[None] == 0)
        ranked_BV = jnp.where(is_kept, ranked_BV, MASKED)
    return jnp.take_along_axis(ranked_BV, jnp.argsort(order_BV, axis=1), axis=1)


def sample(
    logits_BV: Array, sampling: Sampling, seed: Array | int, step: Array | int, number_B: Array | None = None
) -> Array:
    """Returns one sampled token per row, int32 [B].

    A token depends only on the row's logits, the seed, the step and the row's number (by default 0, 1, ...).
    """
    filtered_BV = filter_logits(logits_BV.astype(jnp.float32), sampling)
    rng = jax.random.fold_in(jax.random.key(seed), step)
    number_B = jnp.arange(len(logits_BV)) if number_B is None else number_B
    rng_B = jax.vmap(lambda number: jax.random.fold_in(rng, number))(number_B)
    return jax.vmap(jax.random.categorical)(rng_B, filtered_BV).astype(jnp.int32)
