"""Sums over keys, the fixed-size state of linear attention: queries read these sums instead of the keys themselves.

Axes: G key heads with h query heads each, R features, C positions of a chunk, K head width.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from efficient_attention.attention.dense_attention import MASKED
from efficient_attention.attention.features.feature_map import key_features


class KeySums(NamedTuple):
    """The state of linear attention: float32 sums over the keys that were read so far.

    `sums_BGRK` is the sum of each key's features times its value, phi(k) v. `normaliser_BGR` is the sum of the
    features, phi(k). All features are divided by exp(`stabiliser_BGR`), so that they do not overflow. The stabiliser of
    a feature is its largest logarithm over the keys.
    """

    sums_BGRK: Array
    normaliser_BGR: Array
    stabiliser_BGR: Array


def zero_key_sums(batch: int, key_heads: int, features: int, width: int) -> KeySums:
    """Returns the key sums of linear attention before any key is added."""
    rows = (batch, key_heads, features)
    zeros = functools.partial(jnp.zeros, dtype=jnp.float32)
    return KeySums(zeros((*rows, width)), zeros(rows), jnp.full(rows, MASKED, jnp.float32))


def rescale(sums: KeySums, stabiliser_BGR: Array) -> KeySums:
    """Returns the key sums divided by exp of a new stabiliser instead of the old one.

    No entry of the new stabiliser may be smaller than the old entry.
    """
    shrink_BGR = jnp.exp(sums.stabiliser_BGR - stabiliser_BGR)
    return KeySums(sums.sums_BGRK * shrink_BGR[..., None], sums.normaliser_BGR * shrink_BGR, stabiliser_BGR)


def bring_to_common_scale(sums: KeySums, key_logs_BGCR: Array) -> tuple[KeySums, Array]:
    """Returns the key sums and the features [B, G, C, R] of new keys, both divided by exp of one common stabiliser.

    The stabiliser is the largest log feature of the sums and of the new keys.
    """
    highest_BGR = jax.lax.stop_gradient(key_logs_BGCR.max(axis=2))
    sums = rescale(sums, jnp.maximum(sums.stabiliser_BGR, highest_BGR))
    return sums, key_features(key_logs_BGCR, sums.stabiliser_BGR[:, :, None])


def add_keys(sums: KeySums, key_BGCR: Array, value_BGCK: Array) -> KeySums:
    """Returns the key sums with new keys and values added.

    `key_BGCR` holds the features of the new keys, divided by exp of the stabiliser of `sums`, as
    `bring_to_common_scale` returns them.
    """
    sums_BGRK = sums.sums_BGRK + jnp.einsum('BGCR,BGCK->BGRK', key_BGCR, value_BGCK)
    return sums._replace(sums_BGRK=sums_BGRK, normaliser_BGR=sums.normaliser_BGR + key_BGCR.sum(axis=2))


def combine_sums(left: KeySums, right: KeySums) -> KeySums:
    """Adds two key sums: returns the sums over the keys of both, with a common stabiliser."""
    stabiliser_BGR = jnp.maximum(left.stabiliser_BGR, right.stabiliser_BGR)
    left, right = rescale(left, stabiliser_BGR), rescale(right, stabiliser_BGR)
    return KeySums(left.sums_BGRK + right.sums_BGRK, left.normaliser_BGR + right.normaliser_BGR, stabiliser_BGR)


def reset_other_rows(sums: KeySums, keep_B: Array) -> KeySums:
    """Returns the key sums with all batch rows outside `keep_B` reset to the state before any key is added."""
    keep_B11 = keep_B[:, None, None]
    return KeySums(
        jnp.where(keep_B11[..., None], sums.sums_BGRK, 0.0),
        jnp.where(keep_B11, sums.normaliser_BGR, 0.0),
        jnp.where(keep_B11, sums.stabiliser_BGR, MASKED),
    )


def read_sums(query_BGhCR: Array, sums: KeySums) -> tuple[Array, Array]:
    """Returns the numerators [B, G, h, C, K] and denominators [B, G, h, C] of linear attention,
    for queries over the summed keys.
    """
    numerator_BGhCK = jnp.einsum('BGhCR,BGRK->BGhCK', query_BGhCR, sums.sums_BGRK)
    return numerator_BGhCK, jnp.einsum('BGhCR,BGR->BGhC', query_BGhCR, sums.normaliser_BGR)
