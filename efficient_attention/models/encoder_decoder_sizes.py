"""Defines the published sizes of encoder-decoders, by name; a test asserts their exact parameter counts."""

from typing import Any

from efficient_attention.models.decoder_sizes import known_size

T5_VOCABULARY = 32_128  # 32,000 pieces, 100 sentinels and 28 unused ids
BART_VOCABULARY = 50_265
VASWANI_VOCABULARY = 37_000  # vocabulary size for English-German, "about 37000" in section 5.1 of Vaswani et al. 2017

# Each tuple holds layers per stack, width, heads, head width and feed-forward width.
# T5: Raffel et al. 2019, arXiv 1910.10683, section 3.7.
# T5 1.1 has the gated units of Shazeer 2020, arXiv 2002.05202, and the sizes of the released models.
# Flan-T5 (Chung et al. 2022, arXiv 2210.11416) has the sizes of T5 1.1.
T5_SIZES = {
    'small': (6, 512, 8, 64, 2048),
    'base': (12, 768, 12, 64, 3072),
    'large': (24, 1024, 16, 64, 4096),
    '3b': (24, 1024, 32, 128, 16_384),
    '11b': (24, 1024, 128, 128, 65_536),
}
T5_V1_1_SIZES = {
    'small': (8, 512, 6, 64, 1024),
    'base': (12, 768, 12, 64, 2048),
    'large': (24, 1024, 16, 64, 2816),
    'xl': (24, 2048, 32, 64, 5120),
    'xxl': (24, 4096, 64, 64, 10_240),
}

# Each tuple holds layers per stack and width; heads are 64 wide (Lewis et al. 2019, arXiv 1910.13461, section 2.1).
BART_SIZES = {'base': (6, 768), 'large': (12, 1024)}

# Each tuple holds width, heads and dropout rate; all sizes have 6 layers per stack.
# Source: Vaswani et al. 2017, arXiv 1706.03762, table 3.
VASWANI_SIZES = {'base': (512, 8, 0.1), 'big': (1024, 16, 0.3)}


def t5_fields(size: str) -> dict[str, Any]:
    """Returns the config fields (group `model`) for T5 1.0 of the given size; fields with default values are left out.

    The dropout rate is the rate of fine-tuning and of the first pretraining (section 3.1.2 of the paper).
    """
    row = T5_SIZES[known_size(size, T5_SIZES, 'T5')]
    return _t5_fields(*row) | {'activation': 'relu', 'output_scale': True}


def t5_v1_1_fields(size: str) -> dict[str, Any]:
    """Returns the config fields (group `model`) for T5 1.1 or Flan-T5 of the given size; fields with default values are
    left out.

    Version 1.1 was pretrained without dropout; its fine-tuning enables dropout again.
    """
    row = T5_V1_1_SIZES[known_size(size, T5_V1_1_SIZES, 'T5 1.1')]
    gated = {'feed_forward_gate': True, 'activation': 'gelu_tanh'}
    return _t5_fields(*row) | gated | {'tied_output': False, 'dense_output_bias': False}


def _t5_fields(layers: int, width: int, heads: int, head_width: int, feed_forward_width: int) -> dict[str, Any]:
    """Returns the config fields (group `model`) that T5 1.0 and T5 1.1 share.

    Matrices are initialised as in T5, with two exceptions whose standard deviation is 1 in T5. Here the token table is
    a normal truncated at two standard deviations (0.88), and the separate output of 1.1 has deviation width^-0.5.
    """
    return {
        'layers': layers,
        'decoder_layers': layers,
        'width': width,
        'heads': heads,
        'head_width': head_width,
        'feed_forward_width': feed_forward_width,
        'feed_forward_dropout_rate': 0.1,
        'vocab_size': T5_VOCABULARY,
        'token_types': 0,
        'positions': 'none',
        'relative': 't5',
        'embedding_norm': False,
        'norm': 'pre',
        'norm_kind': 'rms',
        'norm_epsilon': 1e-6,
        'final_dropout': True,
        'attention_bias': False,
        'feed_forward_bias': False,
        'scaled_logits': False,
        'kernel_init': 'fan_in',
        'init_std': 1.0,
    }


def bart_fields(size: str) -> dict[str, Any]:
    """Returns the config fields (group `model`) for BART of the given size; fields with default values are left out.

    Its position table has two extra rows. Dropout and all choices that the paper leaves open follow the released
    models.
    """
    layers, width = BART_SIZES[known_size(size, BART_SIZES, 'BART')]
    return {
        'layers': layers,
        'decoder_layers': layers,
        'width': width,
        'heads': width // 64,
        'feed_forward_dropout_rate': 0.1,
        'vocab_size': BART_VOCABULARY,
        'max_length': 1026,
        'position_offset': 2,
        'token_types': 0,
        'activation': 'gelu_erf',
        'norm_epsilon': 1e-5,
    }


def vaswani_fields(size: str) -> dict[str, Any]:
    """Returns the config fields (group `model`) for the given size in Vaswani et al. 2017; fields with default values
    are left out.

    All projections have biases, and the three word tables are one (section 3.4). The paper gives no epsilon for its
    norms; this value is Marian's.
    """
    width, heads, dropout = VASWANI_SIZES[known_size(size, VASWANI_SIZES, 'Vaswani')]
    return {
        'layers': 6,
        'decoder_layers': 6,
        'width': width,
        'heads': heads,
        'dropout_rate': dropout,
        'attention_dropout_rate': 0.0,
        'vocab_size': VASWANI_VOCABULARY,
        'token_types': 0,
        'positions': 'sinusoidal',
        'embedding_norm': False,
        'embedding_scale': True,
        'activation': 'relu',
        'norm_epsilon': 1e-5,
    }
