"""A small T5 or BART for a laptop CPU, pretrained on 229 books by span corruption, or infilling and permutation.

    efficient-attention train --config configs/text_to_text/books.py:t5 --workdir runs/books_t5
    efficient-attention train --config configs/text_to_text/books.py:bart --workdir runs/books_bart

Data: 229 English books split by book. Both are small versions of the papers' models: 2 + 2 layers of width 128, a
vocabulary of 8,000, and no dropout, because no token is seen twice. They are T5 1.0 (Raffel et al. 2019, arXiv
1910.10683) with its Adafactor, and BART (Lewis et al. 2019, arXiv 1910.13461) with AdamW. T5 hides part of a text of 70
tokens: the source has 64 tokens, the target 20. BART's source and target have at most 128. Fine-tune with
glue.py:sst2-pretrained.

Runs of 2026-11-24, jax 0.10.2, seed 0, one core of an AMD EPYC with other load. `t5`, 28 minutes of processor time for
15.7 million tokens of text: held-out 3.151 nats per piece, accuracy 0.441. `bart`, 23 minutes for at most 4.6 million:
3.860 nats, 0.313.

SST-2 accuracy, fine-tuned from these runs and from random parameters (--config.train.start_random=True), with
--config.train.steps=2100 --config.optimizer.warmup_steps=210 --config.eval.every_steps=700:
- `t5`: 0.803, random 0.795, with Adafactor at rate 1e-2; 0.718, random 0.704, with AdamW at rate 1e-3.
- `bart`: 0.802, random 0.806, with AdamW at rate 1e-3.

One standard deviation is 0.014. docs/results/text_to_text.md says why the gain is so small.
"""

from ml_collections import ConfigDict

from configs.common import set_fields
from configs.text_to_text.common import text_to_text_config
from efficient_attention.models.encoder_decoder_sizes import bart_fields, t5_fields

BOOKS = 'text:data/books/novels_100_english/corpus/*.txt,data/books/classic_books/*/*.md'
NOISES = {'t5': 'span_corruption', 'bart': 'bart'}
FIELDS = {'t5': t5_fields('small'), 'bart': bart_fields('base') | {'norm': 'post', 'max_length': 130}}
SIZE = {'layers': 2, 'decoder_layers': 2, 'width': 128, 'heads': 4, 'head_width': 32, 'feed_forward_width': 512}
LENGTHS = {'t5': (64, 20), 'bart': (128, 128)}  # maximum tokens of a source and of a target
ROWS = {'t5': 16, 'bart': 8}  # rows per batch, for about 1,000 tokens of text per step
STEPS = {'t5': 14_000, 'bart': 4_500}  # training steps, which take about half an hour on one core
RECIPES = {
    # Adafactor's learning rate is relative to the root mean square of each parameter.
    't5': {'name': 'adafactor', 'learning_rate': 3e-2, 'weight_decay': 0.0},
    'bart': {'learning_rate': 1e-3, 'beta2': 0.98, 'bias_correction': True},
}


def get_config(name: str = 't5') -> ConfigDict:
    """Returns the config of a small T5 or a small BART, pretrained on books."""
    if name not in NOISES:
        raise ValueError(f"the config's argument is {name!r}; known: {', '.join(NOISES)}")
    config = text_to_text_config()

    config.data.source = BOOKS
    config.data.held_out = 0.02  # share of the books that is held out
    config.data.tokenizer = 'train:unigram'
    config.data.vocab_size = 8000
    config.data.length, config.pairs.target_length = LENGTHS[name]
    config.noise.name = NOISES[name]

    fields = {field: value for field, value in FIELDS[name].items() if field != 'vocab_size'}
    rates = dict.fromkeys(('dropout_rate', 'attention_dropout_rate', 'feed_forward_dropout_rate'), 0.0)
    set_fields(config.model, fields | SIZE | rates)

    set_fields(config.optimizer, RECIPES[name] | {'schedule': 'linear', 'warmup_steps': 200})
    config.train.steps = STEPS[name]
    config.train.batch_size = ROWS[name]
    config.train.log_every_steps = 200
    config.eval.every_steps = STEPS[name]
    config.eval.batch_size = 32
    config.checkpoint.every_steps = 1_000
    return config
