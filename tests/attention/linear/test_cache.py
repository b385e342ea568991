"""Tests the state of linear attention: K x K sums a head at any length; test_registry.py tests its outputs."""

import jax
import pytest

from efficient_attention.attention.cache import CacheSpec, init_cache
from efficient_attention.attention.linear.definition import Linear
from efficient_attention.errors import InputError


@pytest.mark.parametrize('length', [16, 4096])
def test_it_keeps_sums(length: int):
    cache = jax.eval_shape(lambda: init_cache(CacheSpec(Linear(causal=True), 4, 2, 8, length), 3, 'float32'))
    assert sum(leaf.size for leaf in jax.tree.leaves(cache)) == 3 * 2 * 8 * (8 + 2) + 3


def test_only_the_causal_form_goes_on():
    with pytest.raises(InputError, match='Linear.* is not causal; only causal attention can decode token by token'):
        CacheSpec(Linear(), 4, 2, 8, 16)
