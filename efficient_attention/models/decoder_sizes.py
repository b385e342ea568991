"""Defines the published sizes of decoders, by name; a test asserts their parameter counts, or the known difference from
the papers.
"""

from typing import Any

from efficient_attention.errors import InputError

GPT2_VOCABULARY = 50_257
IMAGE_VOCABULARY = 257  # 256 byte values and a start id, which precedes the first byte of an image
TRAX_BYTE_VOCABULARY = 258  # 256 byte values after two ids that Reformer's code reserves
ENWIK8_VOCABULARY = 204  # number of different byte values in enwik8
WIKITEXT_VOCABULARY = 267_735  # number of words of WikiText-103, including <eos>

# Each tuple holds layers, width and maximum positions. All heads are 64 wide.
# GPT-2: Radford et al. 2019, table 2, with the number of heads of the released models.
# GPT-3: Brown et al. 2020, arXiv 2005.14165, table 2.1, smallest model.
GPT2_SIZES = {'small': (12, 768, 1024), 'medium': (24, 1024, 1024), 'large': (36, 1280, 1024), 'xl': (48, 1600, 1024)}
GPT3_SIZES = {'small': (12, 768, 2048)}

# Each tuple holds layers, vocabulary size and maximum positions (Choromanski et al. 2021, arXiv 2009.14794, section 4).
PERFORMER_SIZES = {
    'regular': (6, 256, 8192),
    'imagenet64_6': (6, IMAGE_VOCABULARY, 12_288),
    'imagenet64_12': (12, IMAGE_VOCABULARY, 12_288),
}

# The config fields in which the published Reformers differ from each other (Kitaev et al. 2020, arXiv 2001.04451).
# 'enwik8_ablation' is from section 5 of the Reformer paper, the others from its authors' code of November 2019.
_TEXT = {'vocab_size': TRAX_BYTE_VOCABULARY, 'axial_shape': (128, 512), 'axial_widths': (256, 768)}
_LOCAL = 'causal & window(128)'
REFORMER_SIZES: dict[str, dict[str, Any]] = {
    'enwik8_ablation': _TEXT
    | {'layers': 3, 'head_width': 64, 'attention': 'lsh(128, 4, causal=True)', 'dropout_rate': 0.1}
    | {'attention_dropout_rate': 0.0, 'activation': 'relu'},
    'enwik8': _TEXT
    | {'layers': 12, 'head_width': 128, 'attention': f'{_LOCAL}; {_LOCAL}; lsh(256, 2, causal=True); {_LOCAL}'}
    | {'dropout_rate': 0.2, 'attention_dropout_rate': 0.2, 'activation': 'relu'},
    'imagenet64': {
        'layers': 6,
        'head_width': 64,
        'attention': 'lsh(128, 2, causal=True)',
        'dropout_rate': 0.0,
        'attention_dropout_rate': 0.0,
        'activation': 'gelu_tanh',
        'vocab_size': IMAGE_VOCABULARY,
        'axial_shape': (64, 64, 3),
        'axial_widths': (384, 384, 256),
    },
}

# Each tuple begins with layers, width, heads, ratio of feed-forward width to width, and attention mechanism.
# Each tuple ends with the sizes of the position tables, the dropout rate and the vocabulary size.
# Source: Child et al. 2019, arXiv 1904.10509, section 7.
# The stride for CIFAR-10, which is one image row, is from the authors' later code.
SPARSE_SIZES = {
    'enwik8': (30, 512, 8, 4, 'sparse_fixed(128, 32)', (96, 128), 0.4, 256),
    'cifar10': (128, 256, 2, 2, 'sparse_strided(96)', (32, 32, 3), 0.25, IMAGE_VOCABULARY),
    'imagenet64': (48, 512, 16, 4, 'sparse_strided(128)', (64, 64, 3), 0.01, IMAGE_VOCABULARY),
}

# Each tuple holds layers, width, heads, head width, feed-forward width, dropout and attention dropout.
# Source: Dai et al. 2019, arXiv 1901.02860, and its released scripts.
TRANSFORMER_XL_SIZES = {
    'enwik8_12': (12, 512, 8, 64, 2048, 0.1, 0.0),
    'enwik8_24': (24, 1024, 8, 128, 3072, 0.15, 0.15),
    'wikitext103_base': (16, 410, 10, 41, 2100, 0.1, 0.0),
    'wikitext103_large': (18, 1024, 16, 64, 4096, 0.2, 0.2),
}


def gpt2_fields(size: str) -> dict[str, Any]:
    """Returns the config fields (group `model`) for GPT-2 of this size; fields with default values are left out."""
    return _gpt_fields(*GPT2_SIZES[known_size(size, GPT2_SIZES, 'GPT-2')])


def gpt3_fields(size: str) -> dict[str, Any]:
    """Returns the config fields (group `model`) for GPT-3 of the given size; fields with default values are left out.

    Every layer attends to all earlier positions. The paper alternates such layers with locally banded layers, but does
    not give their bandwidth.
    """
    return _gpt_fields(*GPT3_SIZES[known_size(size, GPT3_SIZES, 'GPT-3')])


def _gpt_fields(layers: int, width: int, max_length: int) -> dict[str, Any]:
    return _pre_norm_fields() | {
        'layers': layers,
        'width': width,
        'heads': width // 64,
        'vocab_size': GPT2_VOCABULARY,
        'max_length': max_length,
        'attention': 'causal',
    }


def _pre_norm_fields() -> dict[str, Any]:
    return {'token_types': 0, 'embedding_norm': False, 'norm': 'pre', 'norm_epsilon': 1e-5}


def performer_fields(size: str) -> dict[str, Any]:
    """Returns the config fields (group `model`) for a causal Performer of the given size; fields with default values
    are left out.

    The paper gives heads, layers and widths. This codebase chose sinusoidal positions, pre-norm layers and one table
    for input and output.
    """
    layers, vocabulary, max_length = PERFORMER_SIZES[known_size(size, PERFORMER_SIZES, 'Performer')]
    return _pre_norm_fields() | {
        'layers': layers,
        'width': 512,
        'heads': 8,
        'feed_forward_width': 2048,
        'vocab_size': vocabulary,
        'max_length': max_length,
        'positions': 'sinusoidal',
        'attention': 'favor(256, causal=True)',
        'attention_dropout_rate': 0.0,
    }


def reformer_fields(size: str) -> dict[str, Any]:
    """Returns the config fields (group `model`) for the published Reformer of this name; fields with default values are
    left out.

    Differences from the authors' code:

    - The two streams are averaged, not concatenated, before the last norm.
    - Local layers share one projection of queries and keys, as LSH layers do.
    - A window of 128 earlier positions replaces a chunk of 128 and the chunk before it.
    - Weights are initialised with `init_std`.
    """
    return (
        _pre_norm_fields()
        | {'norm_epsilon': 1e-6, 'width': 1024, 'heads': 8, 'feed_forward_width': 4096}
        | {'stack': 'reversible', 'shared_qk': True, 'attention_bias': False, 'positions': 'axial'}
        | {'tied_output': False}
        | REFORMER_SIZES[known_size(size, REFORMER_SIZES, 'Reformer')]
    )


def sparse_fields(size: str) -> dict[str, Any]:
    """Returns the config fields (group `model`) for the published Sparse Transformer of this name; fields with default
    values are left out.

    Its tables of positions are added: rows and columns, or rows, columns and channels. The queries and keys of
    'cifar10' are as wide as the values; the paper's are half as wide. Weights are initialised with `init_std`.
    """
    row = SPARSE_SIZES[known_size(size, SPARSE_SIZES, 'Sparse Transformer')]
    layers, width, heads, factor, attention, shape, dropout, vocabulary = row
    return _pre_norm_fields() | {
        'layers': layers,
        'width': width,
        'heads': heads,
        'feed_forward_width': factor * width,
        'vocab_size': vocabulary,
        'positions': 'axial',
        'axial_shape': shape,
        'axial_sum': True,
        'attention': attention,
        'activation': 'gelu_sigmoid',
        'tied_output': False,
        'dropout_rate': dropout,
        'attention_dropout_rate': 0.0,
    }


def transformer_xl_fields(size: str) -> dict[str, Any]:
    """Returns the config fields (group `model`) for the published Transformer-XL of this name; fields with default
    values are left out.

    All layers share the biases u and v. The two WikiText-103 sizes have word clusters; in the large one, rarer clusters
    also have narrower vectors.
    """
    row = TRANSFORMER_XL_SIZES[known_size(size, TRANSFORMER_XL_SIZES, 'Transformer-XL')]
    names = ('layers', 'width', 'heads', 'head_width', 'feed_forward_width', 'dropout_rate', 'attention_dropout_rate')
    fields: dict[str, Any] = dict(zip(names, row, strict=True)) | {
        'vocab_size': ENWIK8_VOCABULARY,
        'token_types': 0,
        'embedding_norm': False,
        'embedding_scale': True,
        'positions': 'none',
        'relative': 'transformer_xl',
        'attention': 'causal',
        'attention_bias': False,
        'output_bias': True,
        'activation': 'relu',
        'norm_epsilon': 1e-5,
    }
    if size.startswith('wikitext103'):
        fields |= {'vocab_size': WIKITEXT_VOCABULARY, 'adaptive_cutoffs': (20_000, 40_000, 200_000)}
        fields |= {'adaptive_divisor': 4 if size == 'wikitext103_large' else 1}
    return fields


def known_size(size: str, sizes: dict[str, Any], family: str) -> str:
    """Returns `size` if it is a key of the table `sizes`; otherwise raises InputError, which lists the known names."""
    if size not in sizes:
        raise InputError(f'unknown {family} size {size!r}; known: {", ".join(sizes)}')
    return size
