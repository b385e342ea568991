"""Tests sampled keys: frequencies and log-probabilities are those of the softmax, whatever the batch, chunks or
backend.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend, attention_weights
from efficient_attention.attention.hard.definition import Hard
from efficient_attention.attention.logits import query_chunks as logits_serve
from efficient_attention.attention.patterns import Causal
from efficient_attention.attention.softmax.definition import Softmax
from tests.attention.cells import inputs, quick
from tests.tolerances import assert_close

(QUERY, KEY, VALUE), EXTRA = inputs(7, 'segments padding')
DRAWS = Hard(Causal(), sampled=True)


def weights_of(query: jax.Array, mechanism: Any, **options: Any) -> jax.Array:
    return attention_weights(query, KEY, mechanism, **EXTRA, **options)


def outputs(mechanism: Any, **options: Any) -> jax.Array:
    return attend(QUERY, KEY, VALUE, mechanism, **EXTRA, **options)


def test_keys_are_drawn_as_often_as_the_softmax_says():
    @quick
    def both(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        drawn = jax.vmap(lambda rng: weights_of(QUERY, DRAWS, rng=rng))(keys)
        return weights_of(QUERY, Softmax(Causal())), drawn

    expected, found = jax.device_get(both(jax.random.split(jax.random.key(2), 2000)))
    assert_close(found.sum(-1), np.broadcast_to(expected.sum(-1), found.shape[:-1]))
    sigma = np.sqrt(expected * (1 - expected) / len(found))
    assert (np.abs(found.mean(0) - expected) <= 4.5 * sigma + 1e-6).all()


def test_log_probabilities_are_those_of_the_softmax_with_its_gradient():
    @quick
    def all_ways(query: jax.Array, rng: jax.Array) -> tuple:
        weights = weights_of(query, DRAWS, rng=rng)

        def logs(query: jax.Array) -> jax.Array:
            return attend(query, KEY, VALUE, DRAWS, rng=rng, return_lse=True, **EXTRA)[1]

        def expected(query: jax.Array) -> jax.Array:
            soft, has_key = weights_of(query, Softmax(Causal())), weights.sum(-1) > 0
            return jnp.where(has_key, jnp.log(jnp.where(has_key, (soft * weights).sum(-1), 1.0)), 0.0)

        def total(query: jax.Array, f: Callable) -> tuple[jax.Array, jax.Array]:
            return jnp.sin(f(query)).sum(), f(query)

        both = [jax.grad(total, has_aux=True)(query, f) for f in (logs, expected)]
        return weights, both, [outputs(DRAWS, rng=rng, backend=backend) for backend in ('auto', 'reference')]

    weights, (found, expected), (out, by_reference) = jax.device_get(all_ways(QUERY, jax.random.key(4)))
    assert_close(found[1], expected[1])
    assert (weights.sum(-1) == 0).any()
    assert_close(found[0], expected[0], gradient=True)
    assert_close(out, np.einsum('BHLM,BMHK->BLHK', weights, VALUE))
    assert_close(out, by_reference)


def test_draws_depend_on_the_row_s_key_and_not_on_the_parts(monkeypatch: pytest.MonkeyPatch):
    def call(rows: slice, keys: jax.Array) -> jax.Array:
        extra = {name: x[rows] for name, x in EXTRA.items()}
        return attend(QUERY[rows], KEY[rows], VALUE[rows], DRAWS, rng=keys, **extra)

    @quick
    def whole_and_part(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        return call(slice(None), keys), call(slice(1, None), keys[1:])

    keys = jax.random.split(jax.random.key(1), 2)
    whole, part = jax.device_get(whole_and_part(keys))
    assert_close(part, whole[1:])
    monkeypatch.setattr(logits_serve, 'PART_BYTES', 4 * 2 * 4 * 7 * 3)
    assert_close(quick(lambda keys: call(slice(None), keys))(keys), whole)


def test_without_a_key_it_takes_the_largest_logit():
    found, expected = quick(lambda: (outputs(DRAWS), outputs(Hard(Causal()))))()
    assert_close(found, expected)
