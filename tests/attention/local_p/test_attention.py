"""Tests local-p: packed sources, positions in texts, and the gradient to centres, which only the Gaussian gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend, attention_weights
from efficient_attention.attention.checks import check_centres
from efficient_attention.attention.cross_attention_cache import (
    KeySequence,
    NewQueries,
    attend_cross_cached,
    cache_cross_keys,
)
from efficient_attention.attention.local_p.definition import LocalP
from efficient_attention.attention.logits import query_chunks as logits_serve
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.errors import InputError
from tests.attention import contract
from tests.attention.cells import quick
from tests.tolerances import assert_close

L, M, H, K = 5, 11, 2, 8
RNG = np.random.default_rng(0)
QUERY, KEY, VALUE = (jnp.asarray(RNG.normal(size=(2, length, H, K)), jnp.float32) for length in (L, M, M))
CENTRES = jnp.asarray(RNG.uniform(size=(2, L, H)), jnp.float32)
QUERY_SEGMENTS = jnp.asarray([[1, 1, 2, 2, 0], [1] * L])
SEGMENTS = jnp.asarray([[1] * 6 + [2] * 4 + [0], [1] * 3 + [0] * 8])
PLACES = jnp.asarray([[*range(6), *range(4), 0], [*range(3), *[0] * 8]])
OPTIONS = {'query_segments': QUERY_SEGMENTS, 'key_segments': SEGMENTS, 'key_positions': PLACES}
OPTIONS['query_positions'] = jnp.zeros((2, L), jnp.int32)
BACKENDS = ('reference', 'auto')


@pytest.mark.parametrize('radius', [1, 3, 10])
def test_weights_are_the_printed_formula_in_packed_sources(radius: int):
    """The formula's S counts the tokens of the query's own segment, without padding."""
    weights = np.asarray(quick(lambda: attention_weights(QUERY, KEY, LocalP(radius), centres=CENTRES, **OPTIONS))())
    for row in range(2):
        logits = contract.scaled_logits(*(np.asarray(x[row], np.float64) for x in (QUERY, KEY)))
        segments = np.asarray(QUERY_SEGMENTS[row]), np.asarray(SEGMENTS[row])
        args = np.asarray(CENTRES[row], np.float64), segments, np.asarray(PLACES[row]), radius
        assert_close(weights[row], contract.local_p(logits, *args))


@pytest.mark.parametrize('name', ['softmax', 'sparsemax', 'entmax', 'hard'])
def test_the_gradient_reaches_centres_through_the_gaussian(name: str):
    """Compares with finite differences of the weights at points where the window does not change."""

    def value(centres: jax.Array) -> jax.Array:
        weights = attention_weights(QUERY, KEY, LocalP(4, name), centres=centres, **OPTIONS)
        return (weights * jnp.cos(jnp.arange(weights.size, dtype=jnp.float32)).reshape(weights.shape)).sum()

    run = quick(jax.value_and_grad(value))
    found = np.asarray(run(CENTRES)[1])
    assert not found[0, 4].any()  # Query 4 of row 0 is padding.
    step = np.zeros(CENTRES.shape, np.float32)
    step[0, 0, 1] = 1e-3
    ahead, behind = (float(run(np.asarray(CENTRES) + sign * step)[0]) for sign in (1, -1))
    assert_close(found[0, 0, 1], (ahead - behind) / 2e-3, gradient=True)
    assert abs(found[0, 0, 1]) > 1e-3


def test_parts_of_the_queries_and_fixed_keys_give_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logits_serve, 'PART_BYTES', 4 * 2 * H * M * 2)

    @quick
    def all_ways() -> tuple:
        ways = [attend(QUERY, KEY, VALUE, LocalP(3), centres=CENTRES, backend=name, **OPTIONS) for name in BACKENDS]
        fixed = cache_cross_keys(LocalP(3), KeySequence(KEY, VALUE, SEGMENTS, PLACES))
        new = NewQueries(QUERY, QUERY_SEGMENTS, jnp.zeros((2, L), jnp.int32), CENTRES)
        return *ways, attend_cross_cached(LocalP(3), fixed, new)[0]

    expected, in_parts, from_fixed = all_ways()
    assert_close(in_parts, expected)
    assert_close(from_fixed, expected)


@pytest.mark.parametrize(
    'text, line',
    [
        ('local_p(0)', 'local_p radius is 0; it must be at least 1'),
        (
            "local_p(3, 'softmin')",
            "local_p distribution is 'softmin'; it must be one of softmax, sparsemax, entmax, hard",
        ),
        ('local_p(causal)', "'causal' is neither a number, True, False nor a name"),
    ],
)
def test_bad_texts_are_named(text: str, line: str):
    with pytest.raises(InputError, match=line):
        parse_mechanism(text)


def test_centres_go_with_local_p_alone():
    with pytest.raises(ValueError, match=r'needs centres \[B, L, H\] = \(2, 5, 2\)'):
        check_centres(QUERY, LocalP(), None)
    with pytest.raises(
        ValueError, match=r'centres are float32 \(2, 5\); they must be floating-point numbers \(2, 5, 2\)'
    ):
        check_centres(QUERY, LocalP(), CENTRES[..., 0])
    with pytest.raises(ValueError, match='takes no centres; only LocalP does'):
        check_centres(QUERY, parse_mechanism('full'), CENTRES)
