"""What a search is asked for: bad values are named."""

import math

import pytest

from efficient_attention.errors import InputError
from efficient_attention.inference.search import Search


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'beams': 0}, 'beams is 0'),
        ({'best': 5}, 'best is 5; it must be 1 to 4, the beams'),
        ({'penalty': 'wu'}, "penalty is 'wu'; known: gnmt, length"),
        ({'alpha': math.nan}, 'alpha is nan'),
        ({'stop': 'soon'}, "stop is 'soon'; known: exact, early"),
        ({'max_tokens': 0}, 'max_tokens is 0'),
        ({'min_tokens': 128}, 'min_tokens is 128; it must be 0 or more and below max_tokens 128'),
        ({'end': -2}, 'end is -2'),
        ({'end': -1, 'forces_end': True}, 'forces_end is True; it must be False without an end symbol'),
    ],
)
def test_bad_options_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        Search(**fields)
