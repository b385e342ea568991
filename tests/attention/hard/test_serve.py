"""Drawn keys: frequencies and log-probabilities are those of the softmax, whatever the batch, the parts or the form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention.attend import attend, attention_weights
from efficient_attention.attention.hard.definition import Hard
from efficient_attention.attention.logits import serve as logits_serve
from efficient_attention.attention.patterns import Causal
from efficient_attention.attention.softmax.definition import Softmax
from tests.attention.cells import inputs
from tests.tolerances import assert_close

(QUERY, KEY, VALUE), EXTRA = inputs(7, 'segments padding')
DRAWS = Hard(Causal(), sampled=True)


def test_keys_are_drawn_as_often_as_the_softmax_says():
    expected = attention_weights(QUERY, KEY, Softmax(Causal()), **EXTRA)
    keys = jax.random.split(jax.random.key(2), 2000)
    found = jax.jit(jax.vmap(lambda rng: attention_weights(QUERY, KEY, DRAWS, rng=rng, **EXTRA)))(keys)
    assert_close(found.sum(-1), jnp.broadcast_to(expected.sum(-1), found.shape[:-1]))
    sigma = np.sqrt(np.asarray(expected) * (1 - np.asarray(expected)) / len(keys))
    assert (np.abs(np.asarray(found.mean(0) - expected)) <= 4.5 * sigma + 1e-6).all()


def test_log_probabilities_are_those_of_the_softmax_with_its_gradient():
    rng = jax.random.key(4)
    weights = attention_weights(QUERY, KEY, DRAWS, rng=rng, **EXTRA)

    def logs(query: jax.Array) -> jax.Array:
        return attend(query, KEY, VALUE, DRAWS, rng=rng, return_lse=True, **EXTRA)[1]

    def expected(query: jax.Array) -> jax.Array:
        soft = attention_weights(query, KEY, Softmax(Causal()), **EXTRA)
        has_key = weights.sum(-1) > 0
        return jnp.where(has_key, jnp.log(jnp.where(has_key, (soft * weights).sum(-1), 1.0)), 0.0)

    assert_close(logs(QUERY), expected(QUERY))
    assert (weights.sum(-1) == 0).any()
    assert_close(*(jax.grad(lambda q, f=f: jnp.sin(f(q)).sum())(QUERY) for f in (logs, expected)), gradient=True)
    out = attend(QUERY, KEY, VALUE, DRAWS, rng=rng, **EXTRA)
    assert_close(out, jnp.einsum('BHLM,BMHK->BLHK', weights, VALUE))
    assert_close(out, attend(QUERY, KEY, VALUE, DRAWS, rng=rng, backend='reference', **EXTRA))


def test_draws_depend_on_the_row_s_key_and_not_on_the_parts(monkeypatch: pytest.MonkeyPatch):
    keys = jax.random.split(jax.random.key(1), 2)
    whole = attend(QUERY, KEY, VALUE, DRAWS, rng=keys, **EXTRA)
    one = {name: x[1:] for name, x in EXTRA.items()}
    assert_close(attend(QUERY[1:], KEY[1:], VALUE[1:], DRAWS, rng=keys[1:], **one), whole[1:])
    monkeypatch.setattr(logits_serve, 'PART_BYTES', 4 * 2 * 4 * 7 * 3)
    assert_close(attend(QUERY, KEY, VALUE, DRAWS, rng=keys, **EXTRA), whole)


def test_without_a_key_it_takes_the_largest_logit():
    assert_close(attend(QUERY, KEY, VALUE, DRAWS, **EXTRA), attend(QUERY, KEY, VALUE, Hard(Causal()), **EXTRA))
