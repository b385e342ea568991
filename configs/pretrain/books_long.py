"""Compares mechanisms in small encoders, pretrained with MLM on 229 books in packed rows of 4,096 tokens.

efficient-attention train --config configs/pretrain/books_long.py:window --workdir runs/books_long_window

The mechanism follows the colon: full (the baseline), window, bigbird, performer, reformer, full_shared. Everything else
is equal: seed, data, rotary positions, 300 steps of one row. Held-out masked-LM loss (unigram model 6.396), one seed,
2026-11-21, one core of an AMD EPYC, 2 to 19 minutes each with other load: full 6.026, performer 6.028, full_shared
5.752, bigbird 5.745, window 5.429, reformer 5.290. docs/results/attention.md discusses these results, with curves.

scripts/convert.py cannot export them: no Hugging Face family has pre-norm layers with rotary positions.
train.start_from, ea.pipeline and scripts/fill_mask.py load their workdirs. Models of bert.py and albert.py can be
exported.
"""

from ml_collections import ConfigDict

from configs.common import default_config

BOOKS = 'text:data/books/novels_100_english/corpus/*.txt,data/books/classic_books/*/*.md'
# This maps each mechanism's name to fields of `model`.
MECHANISMS = {
    'full': {'attention': 'full'},
    'window': {'attention': 'longformer(64, 64)'},  # a window of 64 keys on each side, and 64 global tokens
    'bigbird': {'attention': 'bigbird(64, 3)'},
    'performer': {'attention': 'favor(128)'},
    'reformer': {'attention': 'lsh(64, 4)', 'shared_qk': True},
    'full_shared': {'attention': 'full', 'shared_qk': True},  # full attention to compare `reformer` with
}


def get_config(mechanism: str = 'window') -> ConfigDict:
    """Returns the config of a small encoder of long rows: 2 layers of width 128 with 4 heads.

    The vocabulary has 8,192 pieces, and each training step has one row of 4,096 tokens.
    """
    if mechanism not in MECHANISMS:
        raise ValueError(f'unknown mechanism {mechanism!r}; known: {", ".join(MECHANISMS)}')
    config = default_config()

    config.data.source = BOOKS
    config.data.held_out = 0.02  # share of the books that is held out
    config.data.tokenizer = 'train:wordpiece'
    config.data.vocab_size = 8192
    config.data.length = 4096  # tokens
    config.data.pairs = 'none'
    config.data.mask_unit = 'word'
    config.data.max_masked = 614

    config.model.width = 128
    config.model.heads = 4
    config.model.layers = 2
    config.model.norm = 'pre'
    config.model.rotary = True
    config.model.positions = 'none'
    config.model.init_std = 0.05
    config.model.dropout_rate = 0.0  # no dropout, because training takes less than one epoch
    config.model.attention_dropout_rate = 0.0
    config.model.scan_unroll = 2
    for field, value in MECHANISMS[mechanism].items():
        config.model[field] = value

    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_steps = 50
    config.optimizer.schedule = 'linear'
    config.optimizer.bias_correction = True

    config.train.steps = 300
    config.train.batch_size = 1  # number of rows, each of 4,096 tokens
    config.train.log_every_steps = 25
    config.checkpoint.every_steps = 300
    config.eval.every_steps = 300
    config.eval.batch_size = 1
    return config
