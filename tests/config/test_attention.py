"""The fields of attention: one clear line for each that is out of range."""

import re

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
        (
            {'attention': 'causal; entmax(causal)', 'attention_backend': 'dense'},
            "model.attention_backend 'dense' executes softmax, and model.attention 'causal; entmax",
        ),
        (
            {'cross_attention': 'local_p(3)', 'attention_backend': 'jax_nn'},
            "model.attention_backend 'jax_nn' executes softmax, and model.cross_attention 'local_p",
        ),
        ({'global_tokens': -1}, 'model.global_tokens is -1'),
    ],
)
def test_bad_fields_are_named(fields: dict, message: str):
    with pytest.raises(InputError, match=message):
        AttentionConfig(**fields)


@pytest.mark.parametrize('text', ['local_p(4)', "local_p(4, 'entmax')"])
def test_local_p_in_self_attention_is_refused(text: str):
    line = 'predicts places in another sequence: use it as model.cross_attention, and window(w) here'
    with pytest.raises(InputError, match=re.escape(f'model.attention {text!r} {line}')):
        AttentionConfig(attention=text)


@pytest.mark.parametrize(
    'text',
    ['full', 'window(3)', 'window(2, 3)', 'per_head(full, window(1))', 'favor(8)', 'linear', 'local_p(3)']
    + ['sparsemax(window(3))', 'entmax(full)', 'hard'],
)
def test_cross_attention_that_reads_another_row(text: str):
    config = AttentionConfig(cross_attention=text, attention_dropout_rate=0.0)
    assert config.cross_mechanism.reads_other_sequence


@pytest.mark.parametrize(
    'text',
    ['lsh(8)', 'block(4)', 'global_tokens(2)', 'longformer(2, 1)', 'bigbird(4, 1)', 'sparse_fixed(8, 2)', 'prefix(3)']
    + ['causal', 'causal & window(3)', 'favor(8, causal=True)', 'linear(causal=True)', 'window(2) | global_tokens(1)']
    + [
        'sparsemax(causal)',
        'entmax(block(4))',
        'random_tiles(1, 4)',
        'listed_tiles(4, 1, 0)',
        'per_head(full, block(2))',
    ],
)
def test_cross_attention_that_needs_one_row_is_refused(text: str):
    with pytest.raises(InputError) as error:
        AttentionConfig(cross_attention=text, attention_dropout_rate=0.0)
    line = (
        f'model.cross_attention {text!r} needs queries and keys in one row; use full, window(w), sparsemax(full), favor'
    )
    assert str(error.value).startswith(line)


@pytest.mark.parametrize(
    'text, message',
    [
        ('favor(8)', r"model.cross_attention 'favor\(8\)' needs model.attention_dropout_rate=0.0"),
        ('per_head(full, window(1), full)', '2 heads do not divide over 3 patterns'),
        ('full; window(2)', "'full; window\\(2\\)' cannot be read"),
    ],
)
def test_cross_attention_that_does_not_fit_is_refused(text: str, message: str):
    with pytest.raises(InputError, match=message):
        AttentionConfig(cross_attention=text)
