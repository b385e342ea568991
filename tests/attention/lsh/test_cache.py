"""Tests that LSH attention cannot be decoded: `CacheSpec` and the cache functions of its implementation refuse it."""

import pytest

from efficient_attention.attention.cache_spec import CacheSpec
from efficient_attention.attention.implementation import raise_no_cache
from efficient_attention.attention.lsh import IMPLEMENTATION
from efficient_attention.attention.lsh.definition import LSH
from efficient_attention.errors import InputError


def test_there_is_no_cache():
    with pytest.raises(InputError, match='^lsh attention cannot decode token by token'):
        CacheSpec(LSH(causal=True), 4, 4, 8, 16)
    assert (IMPLEMENTATION.init_cache, IMPLEMENTATION.decode) == (raise_no_cache, raise_no_cache)
