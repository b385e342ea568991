"""A small character-level language model on 229 English books, on a laptop CPU.

python train.py --config configs/lm/books_characters.py --workdir runs/books_characters

Data: 229 books split by book, 136 M characters in all; the vocabulary is every character of the books to train on.
Each row of a batch reads its own part of the text in order. Held out: every character but the first, in independent
segments of 512 (protocol no_context). Not run to the end yet.
"""

from ml_collections import ConfigDict

from configs.common import language_modelling_config

BOOKS = 'text:data/books/novels_100_english/corpus/*.txt,data/books/classic_books/*/*.md'


def get_config() -> ConfigDict:
    """4 layers of 192 with 6 heads, 1.8 M parameters, 8 streams of 512 characters a step."""
    config = language_modelling_config()

    config.data.source = BOOKS
    config.data.units = 'characters'
    config.data.vocab_size = 320  # rows of the table, at least as many as there are characters
    config.data.held_out = 0.02  # of the books: five, 2.8 M characters, the same as for books_bert
    config.data.length = 512  # characters
    config.data.batches = 'streams'

    config.model.width = 192
    config.model.heads = 6
    config.model.layers = 4
    config.model.rotary = True
    config.model.positions = 'none'
    config.model.init_std = 0.05
    config.model.dropout_rate = 0.0  # less than one pass over the books
    config.model.attention_dropout_rate = 0.0
    config.model.scan_unroll = 4

    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_steps = 50
    config.optimizer.schedule = 'cosine'
    config.optimizer.bias_correction = True

    config.train.steps = 500
    config.train.batch_size = 8  # streams, 4,096 characters
    config.train.log_every_steps = 25
    config.checkpoint.every_steps = 250
    config.eval.every_steps = 500
    config.eval.batch_size = 16
    return config
