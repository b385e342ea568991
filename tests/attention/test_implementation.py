"""Tests that an implementation's fields are called as documented, and that a newly registered mechanism works
at once.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from efficient_attention.attention import registry
from efficient_attention.attention.attend import attend, attention_weights
from efficient_attention.attention.cache_spec import CacheSpec
from efficient_attention.attention.implementation import Implementation
from efficient_attention.attention.linear.definition import Linear
from efficient_attention.attention.mechanism import Mechanism
from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.registry import multiply_adds
from efficient_attention.attention.request import Request


@dataclasses.dataclass(frozen=True)
class Mean(Mechanism):
    """A mechanism in which every key has the same weight."""

    name = 'mean'


def weights(request: Request) -> tuple:
    (batch, queries, heads, _), keys = request.query.shape, request.key.shape[1]
    return jnp.full((batch, heads, queries, keys), 1.0 / keys), None


def serve(request: Request) -> tuple:
    return jnp.broadcast_to(request.value.mean(axis=1, keepdims=True), request.query.shape), None


def test_a_mechanism_has_the_capabilities_of_its_implementation(monkeypatch: pytest.MonkeyPatch):
    implementation = Implementation(Mean, weights, serve, lambda *sizes: len(sizes))
    monkeypatch.setattr(registry, 'NAMES', ('mean',))
    monkeypatch.setattr(registry, 'load_implementation', {'mean': implementation}.__getitem__)
    q, v = jnp.ones((1, 3, 2, 4)), jnp.arange(24.0).reshape(1, 3, 2, 4)
    out = attend(q, q, v, Mean())
    np.testing.assert_allclose(out, attend(q, q, v, Mean(), backend='reference'), rtol=1e-6)
    np.testing.assert_allclose(attention_weights(q, q, Mean()), 1 / 3)
    assert multiply_adds(Mean(), 3, 2, 4) == 4
    assert not Mean().is_causal and parse_mechanism('lsh').name == 'lsh'


@pytest.mark.parametrize('function', ['init_cache', 'decode'])
def test_an_implementation_without_a_cache_refuses_in_one_line(function: str):
    implementation = Implementation(Linear, weights, serve, lambda *sizes: len(sizes))
    with pytest.raises(NotImplementedError, match='^linear has no cache$'):
        getattr(implementation, function)(CacheSpec(Linear(causal=True), 4, 2, 8, 16), 2, 'float32', None)
