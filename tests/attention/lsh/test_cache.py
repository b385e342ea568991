"""LSH attention cannot be decoded: whoever gets past `CacheSpec` is refused too."""

import pytest

from efficient_attention.attention.lsh import cache


@pytest.mark.parametrize('call', [cache.init, cache.decode])
def test_there_is_no_cache(call):
    with pytest.raises(NotImplementedError, match='^lsh has no cache$'):
        call()
