"""Compares mechanisms in small character-level language models of 229 English books, on a laptop CPU.

efficient-attention train --config configs/lm/books_characters.py:full --workdir runs/characters_full

The mechanism follows the colon, as in enwik8_small.py.

Data: 229 books split by book, 136 M characters in all. The vocabulary is every character of the training books. Held
out: one book, every character except the first.

Runs of 2026-11-21, jax 0.10.2, one core of an AMD EPYC each with other load, 7 to 16 minutes. Held-out bits per
character: 2.343 (fixed), 2.356 (full), 2.396 (reformer), 2.429 (transformer_xl), 2.871 (favor, 4 minutes on two cores).
The others were not run to the end. Runs of 2026-11-28, two seeds: 2.440 and 2.418 (transformer_xl), 2.466 and 2.485
(compressive), 2.420 and 2.411 (compressive with mean compression, docs/results/memory.md).

An interpolated 5-gram model scores 2.486 with as many training characters (2.56 M) and 2.203 with all 136 M. A longer
run beats it: fixed with --config.train.steps=10000, 28 minutes on one core, scores 2.086.

scripts/convert.py exports only encoders.
"""

from ml_collections import ConfigDict

from configs.lm.common import small_decoder_config

BOOKS = 'text:data/books/novels_100_english/corpus/*.txt,data/books/classic_books/*/*.md'


def get_config(mechanism: str = 'full') -> ConfigDict:
    """Returns the config of a character-level decoder: 4 layers of width 128 with 4 heads, 0.8 M parameters.

    Each training step has 1,024 characters.
    """
    config = small_decoder_config(mechanism)
    config.data.source = BOOKS
    config.data.units = 'characters'
    config.data.vocab_size = 320  # rows of the embedding table; must be at least the number of different characters
    config.data.held_out = 0.002  # share of the books that is held out: one book of 187,000 characters
    return config
