"""Sums over keys: in parts or at once, on any scale."""

import jax
import jax.numpy as jnp

from efficient_attention.attention.features.key_sums import (
    KeySums,
    add_keys,
    combine,
    keep_rows,
    no_keys,
    read_sums,
    rescale,
    scale_keys,
)
from tests.tolerances import assert_close

LOGS, VALUES = jax.random.normal(jax.random.key(0), (2, 2, 1, 6, 3))


def summed(logs: jax.Array, values: jax.Array) -> KeySums:
    sums, features = scale_keys(no_keys(2, 1, 3, 3), logs)
    return add_keys(sums, features, values)


def plain(sums: KeySums) -> tuple:
    """The sums without a scale."""
    scale = jnp.exp(sums.stabiliser_BGR)
    return sums.sums_BGRK * scale[..., None], sums.normaliser_BGR * scale


def test_two_parts_make_the_sums_over_all_keys():
    whole = summed(LOGS, VALUES)
    assert_close(plain(whole), (jnp.einsum('BGCR,BGCK->BGRK', jnp.exp(LOGS), VALUES), jnp.exp(LOGS).sum(axis=2)))
    parts = combine(summed(LOGS[:, :, :2], VALUES[:, :, :2]), summed(LOGS[:, :, 2:], VALUES[:, :, 2:]))
    assert_close(parts, whole)
    assert_close(combine(no_keys(2, 1, 3, 3), whole), whole)
    assert_close(plain(rescale(whole, whole.stabiliser_BGR + 1.0)), plain(whole))


def test_rows_that_are_not_kept_are_as_before_any_key():
    kept, empty = keep_rows(summed(LOGS, VALUES), jnp.asarray([True, False])), no_keys(2, 1, 3, 3)
    for part, whole, none in zip(kept, summed(LOGS, VALUES), empty, strict=True):
        assert (part[0] == whole[0]).all() and (part[1] == none[1]).all()
    numerator, denominator = read_sums(jnp.ones((2, 1, 1, 1, 3)), kept)
    assert not numerator[1].any() and not denominator[1].any() and denominator[0].all()
