"""Compares mechanisms in small language models of 229 English books, in pieces of a byte-level tokenizer.

efficient-attention train --config configs/lm/books_pieces.py:full --workdir runs/pieces_full

The mechanism follows the colon, as in enwik8_small.py; `full,128` has layers of width 128 instead of 256 and more
steps. Any text can be scored with these models, because every byte is in the vocabulary.

Data: 229 books split by book. scripts/convert.py cannot export these models: no Hugging Face family has rotary
positions without biases here. docs/scoring.md says how to score them.
"""

from ml_collections import ConfigDict

from configs.lm.common import small_decoder_config

BOOKS = 'text:data/books/novels_100_english/corpus/*.txt,data/books/classic_books/*/*.md'

# width of the layers -> training steps and learning rate; the steps of both take about as long on a CPU
SIZES = {128: (7000, 2e-3), 256: (2500, 1.5e-3)}


def get_config(argument: str = 'full') -> ConfigDict:
    """Returns the config of a decoder: 4 layers of width 256 or 128, a vocabulary of 8,192; 2,048 pieces per step.

    `argument` is the mechanism, such as 'full', or with the width 'full,128'.
    """
    mechanism, _, asked = argument.partition(',')
    if asked not in ('', *map(str, SIZES)):
        raise ValueError(f'unknown width {asked!r}; known: {", ".join(map(str, SIZES))}')
    config, width = small_decoder_config(mechanism), int(asked or 256)
    config.data.source = BOOKS
    config.data.tokenizer = 'train:bpe'
    config.data.vocab_size = 8192
    config.data.lowercase = False
    config.data.held_out = 0.005  # share of the books that is held out
    config.model.width = width
    if config.model.feed_forward_width:  # the mechanism's width for layers of 128
        config.model.feed_forward_width *= width // 128
    config.model.loss_chunk = 64  # positions
    if config.model.memory_length:
        config.model.memory_length //= 2
        config.train.batch_size = 16
    else:
        config.data.length = 256
        config.train.batch_size = 8
    config.train.steps, config.optimizer.learning_rate = SIZES[width]
    config.optimizer.warmup_steps = 100
    config.train.log_every_steps = 50
    config.checkpoint.every_steps = 500
    config.eval.every_steps = 2500
    return config
