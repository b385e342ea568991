"""A room without a cache takes two functions that refuse in the mechanism's name."""

import pytest

from efficient_attention.attention import no_cache
from efficient_attention.attention.cache_spec import CacheSpec
from efficient_attention.attention.linear.definition import Linear


@pytest.mark.parametrize('call', [no_cache.init, no_cache.decode])
def test_both_refuse_in_one_line(call):
    with pytest.raises(NotImplementedError, match='^linear has no cache$'):
        call(CacheSpec(Linear(causal=True), 4, 2, 8, 16), 2, 'float32', None)
