"""Makes the common base of the language-model configs: their defaults, and small decoders with each mechanism."""

from typing import Any

from ml_collections import ConfigDict

from configs.common import default_config, set_fields


def language_modelling_config() -> ConfigDict:
    """Returns the base config of language models: defaults, pre-norm layers, causal attention, no token types."""
    config = default_config()
    config.task = 'language_modelling'
    config.model.attention = 'causal'
    config.model.norm = 'pre'
    config.model.norm_epsilon = 1e-5
    config.model.token_types = 0
    config.checkpoint.best_metric = 'causal_lm_loss'
    return config


# This maps each mechanism's name to fields of `model`.
# The feed-forward widths differ, so that all models have the same number of parameters to 0.2 %.
SMALL_DECODERS: dict[str, dict[str, Any]] = {
    'full': {'attention': 'causal'},
    'window': {'attention': 'causal & window(64)'},
    'fixed': {'attention': 'sparse_fixed(64, 8)'},
    'lsh': {'attention': 'lsh(64, 4, causal=True)', 'shared_qk': True, 'feed_forward_width': 576},
    'reformer': {
        'attention': 'lsh(64, 4, causal=True)',
        'shared_qk': True,
        'feed_forward_width': 576,
        'stack': 'reversible',
        'feed_forward_chunk': 128,  # positions
        'loss_chunk': 128,  # positions
    },
    'favor': {'attention': 'favor(128, causal=True)'},
    'transformer_xl': {
        'relative': 'transformer_xl',
        'rotary': False,
        'memory_length': 512,  # tokens
        'feed_forward_width': 448,
    },
    'compressive': {
        'relative': 'transformer_xl',
        'rotary': False,
        'memory_length': 256,  # tokens
        'compression': 'convolution',
        'compressed_length': 256,  # number of compressed memory vectors, each computed from 4 tokens
        'reconstruction_weight': 1.0,
        'feed_forward_width': 192,
    },
    # The mechanism `lsh` is compared with this full attention.
    'full_shared': {'attention': 'causal', 'shared_qk': True, 'feed_forward_width': 576},
    'gru': {'cell': 'gru', 'rotary': False, 'feed_forward_width': 384},
    'lstm': {'cell': 'lstm', 'rotary': False, 'feed_forward_width': 256},
    'sru': {'cell': 'sru2', 'rotary': False, 'feed_forward_width': 576},
}


def small_decoder_config(mechanism: str) -> ConfigDict:
    """Returns the config of a small decoder: 4 layers of width 128 with 4 heads, 2,500 steps of 1,024 tokens.

    A step has 2 rows of 512 tokens, or with memory 8 streams of 128. Such a small batch learns more per token than a
    larger one, and on a CPU it is not slower.
    """
    if mechanism not in SMALL_DECODERS:
        raise ValueError(f'unknown mechanism {mechanism!r}; known: {", ".join(SMALL_DECODERS)}')
    config = language_modelling_config()
    config.data.length = 512  # tokens
    config.model.width = 128
    config.model.layers = 4
    config.model.rotary = True
    config.model.positions = 'none'
    config.model.init_std = 0.05
    config.model.dropout_rate = 0.0  # no dropout, because training takes less than one epoch
    config.model.scan_unroll = 4
    if 'cell' not in SMALL_DECODERS[mechanism]:  # a recurrent cell has neither heads nor attention dropout
        set_fields(config.model, {'heads': 4, 'attention_dropout_rate': 0.0})
    set_fields(config.model, SMALL_DECODERS[mechanism])

    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_steps = 50
    config.optimizer.schedule = 'cosine'
    config.optimizer.bias_correction = True

    config.train.steps = 2500
    config.train.batch_size = 2  # rows per batch, 1,024 tokens in total
    config.train.log_every_steps = 25
    config.checkpoint.every_steps = 500
    config.eval.every_steps = 500
    config.eval.batch_size = 16
    if config.model.memory_length:
        config.data.batches = 'streams'  # each row of a batch continues its text in the next batch
        # A batch has 8 short segments from 8 streams of text. They teach a model more than 2 long segments.
        config.data.length = 128
        config.train.batch_size = 8
        config.eval.batch_size = 4  # number of text streams, each of which starts without memory
    return config
