"""A small ALBERT for a laptop CPU, pretrained on 229 books with masked n-grams and sentence order prediction.

efficient-attention train --config configs/pretrain/books_albert.py --workdir runs/books_albert

Data: 229 English books split by book, 37.3 M training tokens (224 books), 0.81 M held out (5 books), in a Unigram
vocabulary of 8,192. Differences from ALBERT: pre-norm layers, rotary positions, no dropout.

Run of 2026-11-21, 2 cores of an AMD EPYC (AVX-512), float32, jax 0.10.2, seed 0: 3,000 steps (12.3 M tokens, a third of
a pass), 1,980,034 parameters, 7,000 tokens/s on the idle machine; 68 minutes of wall time with other load. Held-out
rows, every example once: masked-token loss 4.189 nats (accuracy 30.0 %, perplexity 65.9), 29.7 % below the unigram
model's 5.957; sentence order 61.7 %. At step 1,000: 4.601, 58.2 %; at 2,000: 4.313, 59.8 %. N-grams of up to three
words are masked, so the loss is not comparable with books_bert. Curve: docs/images/books_albert.svg.

One seed, with the settings of books_bert; a run of 300 steps with the same settings preceded it.

scripts/convert.py cannot export it: no Hugging Face family has pre-norm layers with rotary positions. train.start_from,
ea.pipeline and scripts/fill_mask.py load its workdir. Models of bert.py and albert.py can be exported.
"""

from ml_collections import ConfigDict

from configs.common import default_config

BOOKS = 'text:data/books/novels_100_english/corpus/*.txt,data/books/classic_books/*/*.md'


def get_config() -> ConfigDict:
    """Returns the config of a small ALBERT: one layer of width 256, applied 4 times, with embeddings of width 128."""
    config = default_config()

    config.data.source = BOOKS
    config.data.held_out = 0.02  # share of the books that is held out
    config.data.tokenizer = 'train:unigram'
    config.data.vocab_size = 8192
    config.data.length = 128  # tokens
    config.data.pairs = 'sop'
    config.data.mask_unit = 'ngram'
    config.data.max_masked = 20

    config.model.width = 256
    config.model.heads = 4
    config.model.layers = 4
    config.model.sharing = 'all'
    config.model.embedding_width = 128
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

    config.train.steps = 3_000
    config.train.batch_size = 32  # rows per batch, 4,096 tokens in total
    config.train.log_every_steps = 50
    config.checkpoint.every_steps = 500
    config.eval.every_steps = 1_000
    config.eval.batch_size = 64
    return config
