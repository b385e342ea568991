"""A small T5 and a small BART pretrained on 229 books, on a laptop CPU: span corruption, or infilling and permutation.

    python train.py --config configs/text_to_text/books.py:t5 --workdir runs/books_t5
    python train.py --config configs/text_to_text/books.py:bart --workdir runs/books_bart

Data: 229 English books split by book. Both have the same model and differ by the noise alone; where they differ from
the papers: norm before each sub-layer, rotary positions, no dropout, a vocabulary of 8,000. A source has 256 tokens; a
target of T5 has the 57 of what was hidden in 283, one of BART the whole text. Fine-tuned by glue.py:sst2-pretrained.

Not run yet. The steps are meant for 30 minutes on two quiet cores, evaluations included: on a busy machine a step took
2.0 s of processor time for T5 and 3.7 s for BART. The corpus takes some minutes more, once. On 27 of the novels the
training loss fell from 9.4 to 5.1 nats in T5's first 90 steps, and from 9.4 to 6.2 in BART's first 46.
"""

from ml_collections import ConfigDict

from configs.common import set_fields, text_to_text_config

BOOKS = 'text:data/books/novels_100_english/corpus/*.txt,data/books/classic_books/*/*.md'
NOISES = {'t5': 'span_corruption', 'bart': 'bart'}
LENGTHS = {'t5': 64, 'bart': 256}  # most tokens of a target
STEPS = {'t5': 1_500, 'bart': 760}


def get_config(name: str = 't5') -> ConfigDict:
    """4 + 4 layers of 256, 9.4 M parameters; `name` is 't5' or 'bart'."""
    if name not in NOISES:
        raise ValueError(f"the config's argument is {name!r}; known: {', '.join(NOISES)}")
    config = text_to_text_config()

    config.data.source = BOOKS
    config.data.held_out = 0.02  # of the books
    config.data.tokenizer = 'train:unigram'
    config.data.vocab_size = 8000
    config.data.length = 256
    config.pairs.target_length = LENGTHS[name]
    config.noise.name = NOISES[name]

    fields = dict(
        width=256,
        heads=4,
        layers=4,
        decoder_layers=4,
        positions='none',
        rotary=True,
        embedding_norm=False,
        embedding_scale=True,
        kernel_init='fan_in',
        init_std=256**-0.5,
        dropout_rate=0.0,  # less than one pass over the books: nothing is seen twice
        attention_dropout_rate=0.0,
    )
    set_fields(config.model, fields)

    recipe = dict(learning_rate=1e-3, schedule='linear', warmup_steps=100, beta2=0.98, bias_correction=True)
    set_fields(config.optimizer, recipe)
    config.train.steps = STEPS[name]
    config.train.batch_size = 16  # rows: 4,528 tokens of text for T5, at most 4,080 for BART
    config.train.log_every_steps = 50
    config.eval.every_steps = STEPS[name] // 2
    config.eval.batch_size = 32
    config.checkpoint.every_steps = 250
    return config
