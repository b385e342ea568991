"""A small decoder of arithmetic problems in GPT-3's wording, in characters, for a laptop CPU.

    python scripts/make_arithmetic.py --output data/arithmetic --without 'data/gpt3_synthetic_tasks/*.jsonl'
    efficient-attention train --config configs/lm/arithmetic.py --workdir runs/arithmetic

Each document is one problem, or one after 1 to 8 others of its kind, like a prompt with examples. Documents do not
attend to each other.

Run of 2026-12-02, jax 0.10.2, seed 0, two cores of an AMD EPYC with other load, 30 minutes. Exact answers to GPT-3's
test problems without examples: two-digit addition 99.4 %, two-digit subtraction 13.9 %, three-digit addition 9.9 %,
three-digit subtraction 1.3 %, two operations on one-digit numbers 22.9 %. Half of the training problems are two-digit
additions; examples in the prompt add nothing (docs/results/in_context.md).
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
    # Otherwise an answer could attend to the digits of all problems in its row.
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
