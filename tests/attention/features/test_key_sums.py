"""Tests that sums over keys are equal whether added in parts or at once, and on any scale."""

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.features.key_sums import (
    KeySums,
    add_keys,
    bring_to_common_scale,
    combine_sums,
    read_sums,
    rescale,
    reset_other_rows,
    zero_key_sums,
)
from tests.tolerances import assert_close

LOGS, VALUES = np.random.default_rng(0).normal(size=(2, 2, 1, 6, 3)).astype(np.float32)


def summed(logs: jax.Array, values: jax.Array) -> KeySums:
    sums, features = bring_to_common_scale(zero_key_sums(2, 1, 3, 3), logs)
    return add_keys(sums, features, values)


def plain(sums: KeySums) -> tuple:
    """Returns the sums with their scale multiplied in."""
    scale = jnp.exp(sums.stabiliser_BGR)
    return sums.sums_BGRK * scale[..., None], sums.normaliser_BGR * scale


def test_two_parts_make_the_sums_over_all_keys():

    @jax.jit
    def all_ways(logs: jax.Array, values: jax.Array) -> tuple:
        whole = summed(logs, values)
        parts = combine_sums(summed(logs[:, :, :2], values[:, :, :2]), summed(logs[:, :, 2:], values[:, :, 2:]))
        rescaled = plain(rescale(whole, whole.stabiliser_BGR + 1.0))
        return whole, parts, combine_sums(zero_key_sums(2, 1, 3, 3), whole), plain(whole), rescaled

    whole, parts, after_none, unscaled, rescaled = jax.device_get(all_ways(LOGS, VALUES))
    assert_close(unscaled, (np.einsum('BGCR,BGCK->BGRK', np.exp(LOGS), VALUES), np.exp(LOGS).sum(axis=2)))
    assert_close(parts, whole)
    assert_close(after_none, whole)
    assert_close(rescaled, unscaled)


def test_rows_that_are_not_kept_are_as_before_any_key():

    @jax.jit
    def results(logs: jax.Array, values: jax.Array, is_kept: jax.Array) -> tuple:
        whole = summed(logs, values)
        kept = reset_other_rows(whole, is_kept)
        return kept, whole, zero_key_sums(2, 1, 3, 3), read_sums(jnp.ones((2, 1, 1, 1, 3)), kept)

    kept, all_rows, empty, (numerator, denominator) = jax.device_get(results(LOGS, VALUES, np.asarray([True, False])))
    for part, whole, none in zip(kept, all_rows, empty, strict=True):
        assert (part[0] == whole[0]).all() and (part[1] == none[1]).all()
    assert not numerator[1].any() and not denominator[1].any() and denominator[0].all()
