"""The fields of attention: one clear line for each that is out of range."""

import pytest

from efficient_attention.config.attention import AttentionConfig
from efficient_attention.errors import InputError


def test_heads_share_the_width_unless_theirs_is_given():
    assert AttentionConfig(width=96, heads=4).head_width == 24
    assert AttentionConfig(width=10, heads=4, head_width=3).head_width == 3


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'width': 100, 'heads': 3}, 'model.heads is 3; it must be a divisor of model.width 100'),
        ({'heads': 0}, 'model.heads is 0'),
        ({'attention_dropout_rate': float('nan')}, 'model.attention_dropout_rate is nan'),
        ({'attention': 'windw(3)'}, "unknown name 'windw'"),
        ({'attention_backend': 'cuda'}, "model.attention_backend is 'cuda'; known: auto, reference"),
        ({'width': 6, 'heads': 2, 'rotary': True}, 'model.head_width is 3; it must be even'),
        (
            {'attention': 'lsh(64, 4)'},
            r"model.attention 'lsh\(64, 4\)': LSH needs model.shared_qk=True, causal=True among its arguments",
        ),
        (
            {'attention': 'favor(64, causal=True)'},
            r"model.attention 'favor\(64, causal=True\)': FAVOR needs model.attention_dropout_rate=0.0$",
        ),
        ({'attention': 'per_head(full, causal, full)'}, '2 heads do not divide over 3 patterns'),
        ({'attention': 'causal; windw(3)'}, "unknown name 'windw'"),
        ({'global_tokens': -1}, 'model.global_tokens is -1'),
    ],
)
def test_bad_fields_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        AttentionConfig(**fields)
