r"""Trains translation of Multi30k in rows of eight joined sentences; the encoder has full attention or a window.

    efficient-attention train --config configs/text_to_text/multi30k_joined.py:full --workdir runs/joined_full \
        --config.train.start_from=runs/multi30k
    efficient-attention train --config configs/text_to_text/multi30k_joined.py:window --workdir runs/joined_window \
        --config.train.start_from=runs/multi30k

Eight consecutive pairs are joined into one, some 140 tokens per side. Both runs continue from the run of `multi30k.py`,
with its sizes, tokenizer and parameters; a pattern has no parameters. The decoder and its cross-attention are full in
both.

Runs of 2026-11-24, jax 0.10.2, seed 0, one core of an AMD EPYC with other load, 17 minutes each, from the run of 1,500
steps of `multi30k.py`. test_2016_flickr in 125 rows, five beams, BLEU
(nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0): 27.4 (`full`) and 28.6 (`window`). Held-out: 2.303 and
2.233 nats per piece. Time: 1.76 and 1.80 seconds per step, because both compute such short rows densely.
"""

from ml_collections import ConfigDict

from configs.common import set_fields
from configs.text_to_text.common import leave_model_open, text_to_text_config

# The window has 16 tokens on each side, which is about one sentence before and one after.
ENCODERS = {'full': 'full', 'window': 'window(16)'}
JOINED = 8


def get_config(name: str = 'full') -> ConfigDict:
    """Returns the config of translation with joined sentences: two epochs of 3,625 rows.

    `name` is the attention of the encoder, 'full' or 'window'.
    """
    if name not in ENCODERS:
        raise ValueError(f"the config's argument is {name!r}; known: {', '.join(ENCODERS)}")
    config = text_to_text_config()
    for split, file in (('train', 'train'), ('held_out', 'val'), ('test', 'test_2016_flickr')):
        config.pairs[split] = f'joined:{JOINED}:lines:data/multi30k/raw/{file}.de.gz,data/multi30k/raw/{file}.en.gz'
    leave_model_open(config)
    config.model.attention = ENCODERS[name]
    config.data.length = 256
    config.pairs.target_length = 256
    config.pairs.buckets = (128, 144, 160, 192)

    recipe = {'learning_rate': 5e-4, 'schedule': 'cosine', 'warmup_steps': 100, 'beta2': 0.98, 'eps': 1e-9}
    set_fields(config.optimizer, recipe | {'weight_decay': 0.0, 'bias_correction': True})
    config.train.steps = 500
    config.train.batch_size = 16
    config.train.label_smoothing = 0.1
    config.eval.every_steps = 250
    config.eval.batch_size = 16
    config.checkpoint.every_steps = 250
    return config
