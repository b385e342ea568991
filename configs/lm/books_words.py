"""Compares mechanisms in small word-level language models of 229 English books, on a laptop CPU.

efficient-attention train --config configs/lm/books_words.py:full --workdir runs/words_full

The mechanism follows the colon, as in enwik8_small.py. Words are split at white space, with <eos> at each line's end.
Words with fewer than 100 occurrences in the training books are <unk>. The adaptive softmax gives frequent words vectors
of width 128, and rarer words 64 and 32.

Data: 229 books split by book. Held out: one book, every word except the first.

Runs of 2026-11-21, jax 0.10.2, one core of an AMD EPYC each with other load, 8 (favor) to 26 minutes. Held-out word
perplexity: 140.9 (transformer_xl), 143.9 (fixed), 144.4 (reformer), 147.0 (full), 179.8 (favor). The others were not
run. With all 26 M training words, an interpolated 5-gram model scores 232.8, a 3-gram model 168.9.

scripts/convert.py exports only encoders.
"""

from ml_collections import ConfigDict

from configs.lm.common import small_decoder_config

BOOKS = 'text:data/books/novels_100_english/corpus/*.txt,data/books/classic_books/*/*.md'


def get_config(mechanism: str = 'full') -> ConfigDict:
    """Returns the config of a word-level decoder: 4 layers of width 128 with 4 heads, 1,024 words per step."""
    config = small_decoder_config(mechanism)
    config.data.source = BOOKS
    config.data.units = 'words'
    config.data.lowercase = True
    config.data.min_count = 100
    config.data.vocab_size = 16_000
    config.data.held_out = 0.002  # share of the books that is held out: one book of 187,000 characters
    config.model.adaptive_cutoffs = (2000, 6000)
    config.model.adaptive_divisor = 2
    config.model.loss_chunk = 64  # positions
    return config
