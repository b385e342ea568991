"""Trains a small Transformer on Multi30k, German to English, on raw text (Vaswani et al. 2017, arXiv 1706.03762).

    efficient-attention train --config=configs/text_to_text/multi30k.py:transformer --workdir=runs/multi30k

Data: Elliott et al. 2016, arXiv 1605.00459, in `data/multi30k/raw/`: 29,000 training pairs, 1,014 held out.

Run of 2026-11-23, jax 0.10.2, seed 0, one core of an AMD EPYC with other load, 1 hour 53 minutes: `transformer`, 13.2
epochs, German to English, 5 beams. BLEU (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0): test_2016_flickr
40.3, test_2017_flickr 36.9, test_2017_mscoco 27.9, test_2018_flickr 32.8. Held-out: 1.370 nats per piece. Results by
length, joined sentences and alignments: docs/results/text_to_text.md.

Runs of 2026-11-24 with --config.train.steps=1500, an idle core and 38 minutes each, BLEU in the same order:
`transformer` 36.6, 32.9, 24.6, 29.0, 1.563 nats; `transformer-en-de` 34.3, 25.2, 21.6, 23.3, 1.775 nats.
"""

from ml_collections import ConfigDict

from configs.common import set_fields
from configs.text_to_text.common import text_to_text_config

LANGUAGES = ('de', 'en')


def get_config(name: str = 'transformer') -> ConfigDict:
    """Returns the config of a Transformer that translates Multi30k; 'transformer-en-de' is for English to German."""
    size, _, direction = name.partition('-')
    if size != 'transformer' or direction not in ('', 'en-de'):
        raise ValueError(f"the config's argument is {name!r}; known: transformer, transformer-en-de")
    source, target = LANGUAGES[::-1] if direction else LANGUAGES
    config = text_to_text_config()

    config.data.tokenizer = 'train:unigram'
    config.data.vocab_size = 8000
    config.data.length = 96
    for split, file in (('train', 'train'), ('held_out', 'val'), ('test', 'test_2016_flickr')):
        config.pairs[split] = f'lines:data/multi30k/raw/{file}.{source}.gz,data/multi30k/raw/{file}.{target}.gz'
    config.pairs.target_length = 96
    config.pairs.buckets = (12, 16, 20, 24, 28, 32, 40, 64)  # half of the pairs have at most 16 tokens per language

    fields = dict(
        width=256,
        heads=4,
        feed_forward_width=512,
        layers=3,
        decoder_layers=3,
        activation='relu',
        positions='sinusoidal',
        embedding_norm=False,
        embedding_scale=True,
        kernel_init='fan_in',
        init_std=256**-0.5,
        dropout_rate=0.2,
        attention_dropout_rate=0.1,
    )
    set_fields(config.model, fields)

    recipe = dict(
        learning_rate=1.5e-3,
        schedule='cosine',
        warmup_steps=400,
        beta2=0.98,
        eps=1e-9,
        weight_decay=0.0,
        bias_correction=True,
    )
    set_fields(config.optimizer, recipe)
    config.train.steps = 3000
    config.train.batch_size = 128
    config.train.label_smoothing = 0.1
    config.eval.every_steps = 500
    config.eval.batch_size = 64
    config.checkpoint.every_steps = 500
    config.checkpoint.keep = 5
    return config
