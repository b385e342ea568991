"""A room without a cache takes two functions that refuse in the mechanism's name."""

from types import SimpleNamespace

import pytest

from efficient_attention.attention import no_cache
from efficient_attention.attention.mechanism import Mechanism


@pytest.mark.parametrize('call', [no_cache.init, no_cache.decode])
def test_both_refuse_in_one_line(call):
    with pytest.raises(NotImplementedError, match='^mechanism has no cache$'):
        call(SimpleNamespace(mechanism=Mechanism()), 2, 'float32', None)
