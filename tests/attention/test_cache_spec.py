"""Tests which mechanisms can be decoded token by token, and the error for the others."""

import pytest

from efficient_attention.attention.cache_spec import CacheSpec
from efficient_attention.attention.favor.definition import FAVOR
from efficient_attention.attention.lsh.definition import LSH
from efficient_attention.attention.parsing import parse_pattern
from efficient_attention.attention.softmax.definition import Softmax
from efficient_attention.errors import InputError


@pytest.mark.parametrize(
    'mechanism, line',
    [
        (
            LSH(causal=True),
            'lsh attention cannot decode token by token: which keys a query reads depends on the tokens',
        ),
        (FAVOR(8), 'only causal attention can decode token by token'),
        (Softmax(parse_pattern('window(3)')), 'only causal attention can decode token by token'),
        (Softmax(parse_pattern('causal | global_tokens(1)')), 'only causal attention can decode token by token'),
    ],
)
def test_what_cannot_be_decoded_is_one_line(mechanism, line: str):
    with pytest.raises(InputError, match=line) as caught:
        CacheSpec(mechanism, 4, 2, 8, 48)
    assert '\n' not in str(caught.value)
    with pytest.raises(InputError, match='max_length is 0; it must be at least 1'):
        CacheSpec(FAVOR(8, causal=True), 4, 2, 8, 0)
