"""A small decoder of arithmetic problems in GPT-3's wording, in characters, for a laptop CPU.

    python scripts/make_arithmetic.py --output data/arithmetic --without 'data/gpt3_synthetic_tasks/*.jsonl'
    efficient-attention train --config configs/lm/arithmetic.py --workdir runs/arithmetic

Each document is one problem, or one after 1 to 8 others of its kind, like a prompt with examples. Documents do not
attend to each other.
"""

from ml_collections import ConfigDict

from configs.common import set_fields
from configs.lm.common import language_modelling_config


def get_config() -> ConfigDict:
    """Returns the config of a decoder of arithmetic problems: 2 layers of width 128 with 4 heads."""
    config = language_modelling_config()
    config.data.source = 'jsonl:data/arithmetic/*.jsonl#text'
    config.data.units = 'characters'
    config.data.vocab_size = 64  # rows of the embedding table; must be at least the number of different characters
    # share of the documents that is held out; most of their two-digit problems also occur in training
    config.data.held_out = 0.005
    # Without this, a problem's answer could read the digits of all problems in its row. In a trial, two-digit addition
    # was not learned in 3 million characters so, and else in 2 million.
    config.data.cut_at_documents = True
    config.data.length = 384  # characters; a text has 324 at most

    set_fields(config.model, {'width': 128, 'layers': 2, 'heads': 4, 'positions': 'none', 'rotary': True})
    set_fields(config.model, {'dropout_rate': 0.0, 'attention_dropout_rate': 0.0, 'init_std': 0.1})

    set_fields(config.optimizer, {'learning_rate': 2e-3, 'warmup_steps': 200, 'schedule': 'cosine'})
    config.optimizer.bias_correction = True
    config.train.steps = 10_000
    config.train.batch_size = 4
    config.eval.every_steps = 1000
    config.eval.batch_size = 32
    config.checkpoint.every_steps = 1000
    return config
