"""Tests that each out-of-range field of the group `checkpoint` is refused in one line that names the field."""

import pytest

from efficient_attention.config.checkpoint import CheckpointConfig
from efficient_attention.errors import InputError


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('every_steps', 0),
        ('keep', 0),
        ('keep_best', -1),
        ('best_mode', 'least'),
        ('keep_best', 1),
        ('when_save_fails', 'ignore'),
    ],
)
def test_a_bad_field_is_named(field, value):
    with pytest.raises(InputError, match=rf'^checkpoint\.{field} '):
        CheckpointConfig(**{field: value})
