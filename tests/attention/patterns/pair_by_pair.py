"""Checks a pattern pair by pair against a function of two positions that defines it."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from efficient_attention.attention.parsing import parse_pattern
from efficient_attention.attention.patterns import dense_mask

L, M = 23, 29  # Final global tokens are counted from the end of the M keys.
Definition = Callable[[int, int], bool]


def check_definition(text: str, definition: Definition) -> None:
    """Checks that the pattern allows the pairs for which the definition is true, with NumPy and JAX arrays."""
    pattern = parse_pattern(text).for_key_count(M)
    expected = np.array([[definition(q, k) for k in range(M)] for q in range(L)])
    np.testing.assert_array_equal(dense_mask(pattern, L, M), expected)
    on_device = pattern(jnp.arange(L)[:, None], jnp.arange(M)[None])
    np.testing.assert_array_equal(np.asarray(on_device), expected)
    check_shape(text)


def check_shape(text: str) -> None:
    """Checks that the predicate's shape is the broadcast shape of its two arguments, with NumPy and JAX arrays."""
    pattern = parse_pattern(text).for_key_count(M)
    query, key = np.arange(6).reshape(2, 3, 1), np.arange(4)[None, None]
    allowed = pattern(query, key)
    assert np.shape(allowed) == (2, 3, 4) and np.asarray(allowed).dtype == bool
    np.testing.assert_array_equal(allowed.reshape(6, 4), dense_mask(pattern, 6, M)[:, :4])
    on_device = pattern(jnp.asarray(query), jnp.asarray(key))
    np.testing.assert_array_equal(np.asarray(on_device), allowed)
