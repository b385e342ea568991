"""The layer's fields: derived values, and one clear line for each that is out of range."""

import pytest

from efficient_attention.config.layer import LayerConfig
from efficient_attention.errors import InputError


def test_derived_widths():
    config = LayerConfig(width=96, heads=4)
    assert (config.head_width, config.feed_forward_width) == (24, 384)
    assert LayerConfig(width=10, heads=4, head_width=3).head_width == 3


FAVOR = {'attention': 'full; favor(64)', 'attention_dropout_rate': 0.0}


def test_only_untied_positions_scale_the_query():
    assert LayerConfig(relative='t5').query_scale == LayerConfig().query_scale == 1
    assert LayerConfig(relative='tupe').query_scale ** 2 == pytest.approx(0.5)


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'width': 100, 'heads': 3}, 'model.heads is 3; it must be a divisor of model.width 100'),
        ({'heads': 0}, 'model.heads is 0'),
        ({'dropout_rate': 1.0}, r'model.dropout_rate is 1.0; it must be in \[0, 1\)'),
        ({'attention_dropout_rate': float('nan')}, 'model.attention_dropout_rate is nan'),
        ({'activation': 'gelu'}, "model.activation is 'gelu'; known: gelu_tanh, gelu_erf"),
        ({'norm': 'sandwich'}, "model.norm is 'sandwich'; known: post, pre"),
        ({'dtype': 'float16'}, "model.dtype is 'float16'; known"),
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
        ({'feed_forward_chunk': -1}, 'model.feed_forward_chunk is -1'),
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
        LayerConfig(**fields)
