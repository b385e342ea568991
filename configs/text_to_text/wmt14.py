"""Trains the original Transformer, base or big, on WMT 2014 English to German (Vaswani et al. 2017, arXiv 1706.03762).

    efficient-attention train --config configs/text_to_text/wmt14.py:base --workdir runs/wmt14_base

Data: 4.5 million training pairs, newstest2013 held out, newstest2014 for the test, each in two parallel files under
`data/wmt14/`, one sentence per line. Each file can be changed: --config.pairs.train=... The joint vocabulary of 37,000
pieces is byte-pair encoded in the paper and a unigram model here.

The recipe is from sections 5.3 and 5.4 and table 3: Adam with betas 0.9 and 0.98 and epsilon 1e-9. The rate rises over
4,000 steps to width^-0.5 * 4000^-0.5 and then falls with the square root of the step. Dropout is 0.1 and 0.3, label
smoothing 0.1. Training takes 100,000 and 300,000 steps of some 25,000 tokens per side. The paper averages the last 5
(big: 20) checkpoints and searches with 4 beams, alpha 0.6 and at most 50 tokens more than the source. Paper: BLEU 27.3
and 28.4, with 65 and 213 million parameters (here 63,082,496 and 214,245,376;
tests/models/test_encoder_decoder_sizes.py). Not run here.

`eval.py --average 5` averages the 5 checkpoints that are kept, 5,000 steps apart; the paper's are 10 minutes apart.
"""

from ml_collections import ConfigDict

from configs.common import set_fields
from configs.text_to_text.common import text_to_text_config
from efficient_attention.models.encoder_decoder_sizes import vaswani_fields

SIZES = {'base': 100_000, 'big': 300_000}  # {name of the size: training steps}


def get_config(size: str = 'base') -> ConfigDict:
    """Returns the config of the original Transformer in the size 'base' or 'big'."""
    if size not in SIZES:
        raise ValueError(f'unknown size {size!r}; known: {", ".join(SIZES)}')
    config = text_to_text_config()

    for split, name in (('train', 'train'), ('held_out', 'newstest2013'), ('test', 'newstest2014')):
        config.pairs[split] = f'lines:data/wmt14/{name}.en,data/wmt14/{name}.de'
    config.pairs.overlong = 'skip'
    config.data.tokenizer = 'train:unigram'
    config.data.vocab_size = 37_000
    config.data.length = 128
    config.pairs.target_length = 128
    # As in the paper, a row has several pairs, so that batches have the same number of tokens.
    config.pairs.packed = True

    set_fields(config.model, vaswani_fields(size) | {'norm': 'post'})

    recipe = {'schedule': 'rsqrt', 'warmup_steps': 4_000, 'learning_rate': (config.model.width * 4_000) ** -0.5}
    adam = {'beta2': 0.98, 'eps': 1e-9, 'weight_decay': 0.0, 'bias_correction': True}
    set_fields(config.optimizer, recipe | adam)
    config.train.steps = SIZES[size]
    config.train.batch_size = 196  # rows of 128 source tokens and 128 target tokens, so 25,088 of each per batch
    config.train.label_smoothing = 0.1
    config.train.log_every_steps = 100
    config.eval.every_steps = 5_000
    config.eval.batch_size = 64
    config.eval.beams = 4
    config.checkpoint.every_steps = 5_000
    config.checkpoint.keep = 5
    return config
