"""The fields of relative positions: one clear line for each that is out of range or that nobody reads."""

import pytest

from efficient_attention.config.relative import RelativeConfig
from efficient_attention.errors import InputError

FAVOR = {'attention': 'full; favor(64)', 'attention_dropout_rate': 0.0}


def test_only_untied_positions_scale_the_query():
    assert RelativeConfig(relative='t5').query_scale == RelativeConfig().query_scale == 1
    assert RelativeConfig(relative='tupe').query_scale ** 2 == pytest.approx(0.5)


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'relative': 'rope'}, "model.relative is 'rope'; known: none, alibi, t5, tupe, tupe_r"),
        ({'relative': 't5', 'global_tokens': 2}, "model.relative is 't5'; it must be 'none' with model.global_tokens"),
        (FAVOR | {'relative': 'alibi'}, r"model.relative is 'alibi'; attention 'full; favor\(64\)' takes no bias"),
        ({'relative_buckets': 16}, "relative_buckets is 16; it must be 32 with model.relative 'none', which does not"),
        ({'relative': 'alibi', 'relative_max_distance': 64}, 'model.relative_max_distance is 64; it must be 128 with'),
        ({'relative': 't5', 'relative_cls_reset': False}, 'model.relative_cls_reset is False; it must be True with'),
        ({'relative': 't5', 'relative_buckets': 7}, 'model.relative_buckets is 7; it must be even and at least 4'),
        ({'relative': 't5', 'relative_max_distance': 16}, 'model.relative_max_distance is 16; it must be above half'),
    ],
)
def test_bad_fields_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        RelativeConfig(**fields)
