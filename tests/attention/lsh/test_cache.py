"""LSH attention cannot be decoded: whoever gets past `CacheSpec` is refused too."""

from types import SimpleNamespace

import pytest

from efficient_attention.attention.lsh import cache
from efficient_attention.attention.lsh.definition import LSH


@pytest.mark.parametrize('call', [cache.init, cache.decode])
def test_there_is_no_cache(call):
    # `CacheSpec` refuses too, so a stand-in with a mechanism takes its place.
    with pytest.raises(NotImplementedError, match='^lsh has no cache$'):
        call(SimpleNamespace(mechanism=LSH(causal=True)))
