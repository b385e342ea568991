"""Trains a bidirectional language model on books; its layers are features for other tasks (Peters et al. 2018, ELMo).

efficient-attention train --config configs/lm/books_two_way.py --workdir runs/two_way

Two layers of LSTMs per direction over word pieces; the directions do not see each other. docs/recurrent.md says how a
fine-tuning run uses the layers, with results.

Run of 2026-11-25 with train.steps=3200 (6.6 M tokens), jax 0.10.2, seed 0, one core of an AMD EPYC with other load, 55
minutes: held-out 4.77 nats per piece forwards and 4.76 backwards (unigram model: 6.53). It was not run to its end.
"""

from ml_collections import ConfigDict

from configs.common import set_fields
from configs.lm.common import language_modelling_config

BOOKS = 'text:data/books/novels_100_english/corpus/*.txt,data/books/classic_books/*/*.md'


def get_config() -> ConfigDict:
    """Returns the config of a bidirectional LSTM language model: 256 units per direction, 2,048 tokens per step."""
    config = language_modelling_config()
    config.data.source = BOOKS
    config.data.tokenizer = 'train:wordpiece'
    config.data.vocab_size = 8000
    config.data.held_out = 0.002  # share of the books that is held out
    config.data.length = 128  # tokens

    fields = {
        'cell': 'lstm',
        'bidirectional': True,
        'directions_apart': True,
        'width': 512,  # width of both directions together
        'layers': 2,
        'feed_forward': False,
        'positions': 'none',
        'kernel_init': 'fan_in',
        'dropout_rate': 0.1,
        'loss_chunk': 64,  # positions per chunk of the loss
    }
    set_fields(config.model, fields)

    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_steps = 200
    config.optimizer.schedule = 'cosine'
    config.optimizer.bias_correction = True
    config.train.steps = 10_000
    config.train.batch_size = 16  # rows
    config.eval.every_steps = 1000
    config.eval.batch_size = 16
    config.checkpoint.every_steps = 1000
    return config
