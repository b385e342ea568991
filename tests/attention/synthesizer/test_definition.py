"""Tests Synthesizers: parts that depend on no token are equal for all rows; positions beyond the tables; bad texts."""

from collections.abc import Callable

import jax
import numpy as np
import pytest

from efficient_attention.attention.attend import attend, attention_weights
from efficient_attention.attention.cache import init_cache
from efficient_attention.attention.cache_spec import CacheSpec
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.patterns import Causal
from efficient_attention.attention.synthesizer.definition import Synthesizer
from efficient_attention.errors import InputError
from tests.attention.cells import drawn_operands, inputs, quick


def weights_of(mechanism: Synthesizer) -> Callable:
    learned = drawn_operands(mechanism, 4, 8)
    return quick(lambda q, k: attention_weights(q, k, mechanism, learned=learned))


def test_weights_of_tables_are_the_same_for_all_tokens():
    q, k, _ = inputs(12)[0]
    for mechanism in (Synthesizer('random', 16), Synthesizer('factorized', 16, 3)):
        weights = weights_of(mechanism)(q, k)
        np.testing.assert_array_equal(weights[0], weights[1])
        assert not mechanism.key_access.queries and not mechanism.key_access.keys
    dense = Synthesizer('dense', 16)
    weights = np.asarray(weights_of(dense)(q, k))
    assert np.abs(weights[0] - weights[1]).max() > 0.01
    assert dense.key_access.queries and not dense.key_access.keys


@pytest.mark.parametrize('kind', ['dense', 'random', 'factorized'])
@pytest.mark.parametrize('backend', ['reference', 'auto'])
def test_positions_beyond_the_tables_are_nan(kind: str, backend: str):
    """Positions are known only while the program runs; rows that are too long are refused earlier."""
    mechanism, (q, k, v) = Synthesizer(kind, 8, pattern=Causal()), inputs(6)[0]
    learned = drawn_operands(mechanism, 4, 8)

    @quick
    def run(places: jax.Array) -> jax.Array:
        options = {'query_positions': places, 'key_positions': places, 'learned': learned, 'backend': backend}
        return attend(q, k, v, mechanism, **options)

    out = np.asarray(run(np.asarray([np.arange(6), np.arange(6) + 4], np.int32)))
    assert np.isfinite(out[0]).all() and np.isfinite(out[1, :4]).all() and np.isnan(out[1, 4:]).all()
    assert np.isnan(np.asarray(run(np.asarray([np.arange(6), np.arange(6) - 1], np.int32)))[1, 0]).all()
    with pytest.raises(NotImplementedError, match='synthesizer has no support for 9 positions, only for up to 8'):
        init_cache(CacheSpec(mechanism, 4, 4, 8, 9), 2, 'float32')


@pytest.mark.parametrize(
    'text, line',
    [
        ("synthesizer('dens')", "synthesizer kind is 'dens'; it must be one of dense, random, factorized, random"),
        ("synthesizer('dense', 0)", 'synthesizer length is 0; it must be at least 1'),
        ("synthesizer('factorized', 8, 0)", 'synthesizer rank is 0; it must be at least 1'),
        ("synthesizer('random', 8, 3)", "synthesizer rank is 3; it must be 8 with kind 'random', which has none"),
        ("synthesizer('dense', pattern=8)", 'synthesizer pattern is 8; it must be a pattern'),
        ("synthesizer('dense', 8, 4, causal)", r'synthesizer takes \('),
        ('synthesizer(causal)', 'synthesizer kind is .*; it must be a name in quotes'),
    ],
)
def test_bad_texts_are_named(text: str, line: str):
    with pytest.raises(InputError, match=line):
        parse_mechanism(text)
