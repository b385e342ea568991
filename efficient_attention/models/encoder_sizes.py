"""Defines the published sizes of encoders, by name; a test asserts their exact parameter counts."""

from typing import Any

from efficient_attention.models.decoder_sizes import known_size

BERT_VOCABULARY = 30_522  # vocabulary size of bert-base-uncased
ALBERT_VOCABULARY = 30_000
ROBERTA_VOCABULARY = 50_265
BIGBIRD_VOCABULARY = 50_358

# Each tuple holds layers and width (Devlin et al. 2018, arXiv 1810.04805, section 3).
# The 24 miniature models and the formula heads = width / 64 are from Turc et al. 2019, arXiv 1908.08962.
BERT_SIZES = {'base': (12, 768), 'large': (24, 1024)} | {
    f'{layers}x{width}': (layers, width) for layers in (2, 4, 6, 8, 10, 12) for width in (128, 256, 512, 768)
}
BERT_ALIASES = {'tiny': '2x128', 'mini': '4x256', 'small': '4x512', 'medium': '8x512'}

# Each tuple holds layers, width and dropout rate (Lan et al. 2019, arXiv 1909.11942, table 1).
# Section 3.1 of the ALBERT paper states heads = width / 64; version 1 of the released models states the dropout rate.
ALBERT_SIZES = {
    'base': (12, 768, 0.1),
    'large': (24, 1024, 0.1),
    'xlarge': (24, 2048, 0.1),
    'xxlarge': (12, 4096, 0.0),
}

# Each tuple holds layers, width and feed-forward width; all sizes have 12 heads.
# Source: Jiao et al. 2019, arXiv 1909.10351, section 4.2.
TINYBERT_SIZES = {'4': (4, 312, 1200), '6': (6, 768, 3072)}


def bert_fields(size: str) -> dict[str, Any]:
    """Returns the config fields (group `model`) for BERT of the given size; fields with default values are left out."""
    layers, width = BERT_SIZES[known_size(BERT_ALIASES.get(size, size), BERT_SIZES, 'BERT')]
    return {'layers': layers, 'width': width, 'heads': width // 64, 'vocab_size': BERT_VOCABULARY}


def distilbert_fields(size: str) -> dict[str, Any]:
    """Returns the config fields (group `model`) for DistilBERT (Sanh et al. 2019, section 3).

    It has half of BERT-base's layers and no token types.
    """
    known_size(size, {'base': ()}, 'DistilBERT')
    return bert_fields('6x768') | {'token_types': 0}


def tinybert_fields(size: str) -> dict[str, Any]:
    """Returns the config fields (group `model`) for TinyBERT of the given size; fields with default values are left
    out.
    """
    layers, width, wide = TINYBERT_SIZES[known_size(size, TINYBERT_SIZES, 'TinyBERT')]
    return {
        'layers': layers,
        'width': width,
        'heads': 12,
        'feed_forward_width': wide,
        'vocab_size': BERT_VOCABULARY,
    }


def albert_fields(size: str) -> dict[str, Any]:
    """Returns the config fields (group `model`) for ALBERT of this size; fields with default values are left out."""
    layers, width, dropout = ALBERT_SIZES[known_size(size, ALBERT_SIZES, 'ALBERT')]
    return {
        'layers': layers,
        'width': width,
        'heads': width // 64,
        'embedding_width': 128,
        'sharing': 'all',
        'dropout_rate': dropout,
        'attention_dropout_rate': dropout,
        'vocab_size': ALBERT_VOCABULARY,
    }


def longformer_fields(size: str) -> dict[str, Any]:
    """Returns the config fields (group `model`) for Longformer of the given size; fields with default values are left
    out.

    It is RoBERTa's encoder with extra projections for global tokens. As in RoBERTa, the position table has two extra
    rows. Sources: Beltagy et al. 2020, arXiv 2004.05150, section 5, and its released code, whose window of 256 is per
    side.
    """
    layers, width = {'base': (12, 768)}[known_size(size, {'base': ()}, 'Longformer')]
    return {
        'layers': layers,
        'width': width,
        'heads': width // 64,
        'vocab_size': ROBERTA_VOCABULARY,
        'max_length': 4098,
        'position_offset': 2,
        'token_types': 1,
        'activation': 'gelu_erf',
        'norm_epsilon': 1e-5,
        'attention': 'window(256)',
        'global_tokens': 128,
    }


def bigbird_fields(size: str) -> dict[str, Any]:
    """Returns the config fields (group `model`) for BigBird-ITC of the given size (Zaheer et al. 2020, arXiv
    2007.14062, appendix E).

    They are the fields that differ from `ModelConfig`'s defaults.
    """
    layers, width = {'base': (12, 768)}[known_size(size, {'base': ()}, 'BigBird')]
    return {
        'layers': layers,
        'width': width,
        'heads': width // 64,
        'vocab_size': BIGBIRD_VOCABULARY,
        'max_length': 4096,
        'attention': 'bigbird(64, 3)',
    }
