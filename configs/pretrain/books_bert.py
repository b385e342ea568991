"""A small BERT for a laptop CPU, pretrained on 229 books with masked words and next-sentence prediction.

efficient-attention train --config configs/pretrain/books_bert.py --workdir runs/books_bert

Data: 229 English books split by book, 33.0 M training tokens (224 books), 0.71 M held out (5 books). Differences from
BERT: pre-norm layers, rotary positions, no dropout, a vocabulary of 8,192.

Run of 2026-11-21, 2 cores of an Intel Xeon (AVX-512), float32, jax 0.10.2, seed 0: 2,400 steps (9.8 M tokens, under a
third of a pass), 6,200 tokens/s on the idle machine; about 45 minutes of wall time with other load. Held-out rows,
every example once: masked-token loss 3.993 nats (accuracy 33.3 %, perplexity 54.2), 37.5 % below the unigram model's
6.386; next sentence 63.3 %. At step 1,200: 4.306, 60.0 %. Curve: docs/images/books_bert.svg.

One seed. Four earlier trials on this corpus were stopped by their training loss before step 800, all near the unigram
loss. They had learned positions with post-norm or pre-norm layers, init_std 0.02 or 0.05, and rates 1e-3 and 1.5e-3.
Rotary positions were then chosen on the quickstart's corpus.

scripts/convert.py cannot export it: no Hugging Face family has pre-norm layers with rotary positions. train.start_from,
ea.pipeline and scripts/fill_mask.py load its workdir. Models of bert.py and albert.py can be exported.
"""

from ml_collections import ConfigDict

from configs.common import default_config

BOOKS = 'text:data/books/novels_100_english/corpus/*.txt,data/books/classic_books/*/*.md'


def get_config() -> ConfigDict:
    """Returns the config of a small BERT: 4 layers of width 256, with a vocabulary of 8,192."""
    config = default_config()

    config.data.source = BOOKS
    config.data.held_out = 0.02  # share of the books that is held out
    config.data.tokenizer = 'train:wordpiece'
    config.data.vocab_size = 8192
    config.data.length = 128  # tokens
    config.data.pairs = 'nsp'
    config.data.mask_unit = 'word'
    config.data.max_masked = 20

    config.model.width = 256
    config.model.heads = 4
    config.model.layers = 4
    config.model.norm = 'pre'
    # With learned positions, the loss would fall below a unigram model's loss only after several times as many steps.
    config.model.rotary = True
    config.model.positions = 'none'
    # This deviation is near 1 / sqrt(width). With 0.02, a model this narrow needs more steps to beat a unigram model.
    config.model.init_std = 0.05
    config.model.dropout_rate = 0.0  # no dropout, because training takes less than one epoch and sees no token twice
    config.model.attention_dropout_rate = 0.0
    config.model.scan_unroll = 4

    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 200
    config.optimizer.schedule = 'linear'
    config.optimizer.bias_correction = True

    config.train.steps = 2_400
    config.train.batch_size = 32  # rows per batch, 4,096 tokens in total
    config.train.log_every_steps = 50
    config.checkpoint.every_steps = 400
    config.eval.every_steps = 1_200
    config.eval.batch_size = 64
    return config
