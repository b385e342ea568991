"""Small character-level language models on 229 English books, on a laptop CPU: mechanisms side by side.

python train.py --config configs/lm/books_characters.py:full --workdir runs/characters_full

The mechanism follows the colon, as in enwik8_small.py.

Data: 229 books split by book, 136 M characters in all; the vocabulary is every character of the books to train on.
Held out: every character but the first of one book.

Runs of 2026-11-21, jax 0.10.2, one core of an AMD EPYC each beside other work, 7 to 16 minutes: bits per character held
out 2.343 (fixed), 2.356 (full), 2.396 (reformer), 2.429 (transformer_xl), 2.871 (favor, 4 minutes on two cores); the
others were not run to the end. Of 2026-11-28, two seeds: 2.440 and 2.418 (transformer_xl), 2.466 and 2.485
(compressive), 2.420 and 2.411 (compressive by a mean, docs/results/memory.md).

An interpolated 5-gram model scores 2.486 on as many characters (2.56 M) and 2.203 on all 136 M. That takes longer:
fixed with --config.train.steps=10000, 28 minutes on one core, scores 2.086.

scripts/convert.py exports encoders alone.
"""

from ml_collections import ConfigDict

from configs.lm.common import small_decoder_config

BOOKS = 'text:data/books/novels_100_english/corpus/*.txt,data/books/classic_books/*/*.md'


def get_config(mechanism: str = 'full') -> ConfigDict:
    """4 layers of 128 with 4 heads, 0.8 M parameters, 1,024 characters a step."""
    config = small_decoder_config(mechanism)
    config.data.source = BOOKS
    config.data.units = 'characters'
    config.data.vocab_size = 320  # rows of the table, at least as many as there are characters
    config.data.held_out = 0.002  # of the books: one, of 187,000 characters
    return config
