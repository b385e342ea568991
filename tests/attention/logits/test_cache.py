"""Tests caches of keys: a ring can go on without end, other caches only up to their length; the dtype is kept."""

import jax
import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.attend import attend
from efficient_attention.attention.cache_spec import CacheSpec
from efficient_attention.attention.logits.cache import KeyCache
from tests.attention.cells import quick
from tests.attention.test_cache import ONES, POSITIONS, arrays, in_pieces, spec_of
from tests.tolerances import assert_close


def at_once(spec: CacheSpec, dtype: str = 'float32') -> jax.Array:
    return quick(lambda *x: attend(*x, spec.mechanism, backend='reference'))(*arrays(dtype))


def test_half_precision_stays_near_the_definition():
    spec = spec_of('causal & window(5)')
    out, cache = in_pieces(spec, 1, *arrays('bfloat16'), POSITIONS, ONES)
    assert out.dtype == jnp.bfloat16 and isinstance(cache, KeyCache) and cache.key_BGMK.dtype == jnp.bfloat16
    assert_close(out, at_once(spec, 'bfloat16'), dtype='bfloat16')


def test_a_ring_goes_on_beyond_the_length_that_it_was_made_for():
    spec = spec_of('causal & window(5)', length=8)
    out, cache = in_pieces(spec, 6, *arrays(), POSITIONS, ONES)
    assert_close(out, at_once(spec))
    assert cache.key_BGMK.shape == (2, 2, 6, 8)


def test_a_token_that_has_no_slot_is_not_a_number():
    out, _ = in_pieces(spec_of('sparse_fixed(8, 2)', length=24), 12, *arrays(), POSITIONS, ONES)
    out = np.asarray(out)
    assert np.isfinite(out[:, :24]).all() and np.isnan(out[:, 24:]).all()
