"""Small character-level language models on 229 English books, on a laptop CPU: mechanisms side by side.

python train.py --config configs/lm/books_characters.py:full --workdir runs/characters_full

The mechanism follows the colon, as in enwik8_small.py.

Data: 229 books split by book, 136 M characters in all; the vocabulary is every character of the books to train on.
Held out: every character but the first of one book.
"""

from ml_collections import ConfigDict

from configs.common import small_decoder_config

BOOKS = 'text:data/books/novels_100_english/corpus/*.txt,data/books/classic_books/*/*.md'


def get_config(mechanism: str = 'full') -> ConfigDict:
    """4 layers of 128 with 4 heads, 0.8 M parameters, 1,024 characters a step."""
    config = small_decoder_config(mechanism)
    config.data.source = BOOKS
    config.data.units = 'characters'
    config.data.vocab_size = 320  # rows of the table, at least as many as there are characters
    config.data.held_out = 0.002  # of the books: one, of 187,000 characters
    return config
