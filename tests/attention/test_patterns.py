"""Patterns: their definition on dense masks, their combinations, their text form."""

import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.patterns import And, Causal, Full, Or, Pattern, dense_mask, parse_pattern
from efficient_attention.errors import InputError


def test_full_allows_all_and_causal_the_lower_triangle():
    assert dense_mask(Full(), 3, 5).all() and dense_mask(Full(), 3, 5).shape == (3, 5)
    np.testing.assert_array_equal(dense_mask(Causal(), 4, 6), np.tri(4, 6, dtype=bool))


def test_combinations_are_elementwise():
    left, right = dense_mask(Causal(), 5, 5), dense_mask(Full(), 5, 5)
    np.testing.assert_array_equal(dense_mask(Causal() & Full(), 5, 5), left & right)
    np.testing.assert_array_equal(dense_mask(Causal() | Full(), 5, 5), left | right)


def test_numpy_and_jax_agree():
    query, key = np.arange(7)[:, None], np.arange(9)[None, :]
    np.testing.assert_array_equal(Causal()(query, key), np.asarray(Causal()(jnp.asarray(query), jnp.asarray(key))))


def test_patterns_are_hashable_values():
    assert hash(Causal() & Full()) == hash(Causal() & Full())
    assert Causal() != Full()
    with pytest.raises(NotImplementedError, match='Pattern defines no predicate'):
        dense_mask(Pattern(), 2, 2)


@pytest.mark.parametrize(
    'text, pattern',
    [
        ('full', Full()),
        (' causal ', Causal()),
        ('causal()', Causal()),
        ('causal & full', And(Causal(), Full())),
        ('causal & (full | causal)', And(Causal(), Or(Full(), Causal()))),
    ],
)
def test_text_form(text: str, pattern: Pattern):
    assert parse_pattern(text) == pattern


@pytest.mark.parametrize(
    'text, message',
    [
        ('windw(3)', "unknown name 'windw'; known: causal, full"),
        ('causal &', 'cannot be read'),
        ('causal + full', 'neither a pattern nor a combination'),
        ('causal(2)', 'causal'),
        ('causal(__import__("os"))', 'not a whole number'),
        ('(1).__class__', 'neither a pattern nor a combination'),
        ('', 'cannot be read'),
    ],
)
def test_bad_text_gives_one_line(text: str, message: str):
    with pytest.raises(InputError) as caught:
        parse_pattern(text)
    assert message.lower() in str(caught.value).lower() and '\n' not in str(caught.value)
