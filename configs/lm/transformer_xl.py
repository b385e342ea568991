"""Transformer-XL with segment memory, on enwik8 (12 and 24 layers) and on WikiText-103 (base and large).

efficient-attention train --config configs/lm/transformer_xl.py:enwik8_12 --workdir runs/transformer_xl_enwik8_12

The size follows the colon: enwik8_12 (41,055,436 parameters with the paper's 204 ids; this config has 256), enwik8_24
(277,231,820), wikitext103_base (151,107,538), wikitext103_large (285,170,506; the paper says 257 M);
tests/models/test_decoder_sizes.py.

Recipe of Dai et al. 2019 (arXiv 1901.02860) and its released scripts: Adam at 2.5e-4, clipping 0.25, a cosine decay.
The memory is as long as the segment in training and longer in evaluation, where every query attends to the same number
of keys. Paper: 1.06 and 0.99 bits per byte, word perplexities of 24.0 and 18.3. Not run here.

WikiText-103 consists of three files. `data.splitting='end'` splits at the file borders, up to a few words. The
vocabulary is the words of the training part.
"""

from ml_collections import ConfigDict

from configs.common import set_fields
from configs.lm.common import language_modelling_config
from efficient_attention.models.decoder_sizes import transformer_xl_fields

# This maps the name of a size to its tokens per segment, rows per batch, training steps and warm-up steps.
SIZES = {
    'enwik8_12': (512, 22, 400_000, 0),
    'enwik8_24': (768, 64, 400_000, 4_000),
    'wikitext103_base': (150, 60, 200_000, 0),
    'wikitext103_large': (384, 128, 4_000_000, 16_000),
}
# For evaluation, this maps a size to its tokens per segment, memory tokens, and largest distance.
EVALUATION = {
    'enwik8_12': (80, 2100, 820),
    'enwik8_24': (128, 3800, 1000),
    'wikitext103_base': (64, 640, 400),
    'wikitext103_large': (128, 1600, 1000),
}


def get_config(size: str = 'enwik8_12') -> ConfigDict:
    """Returns the config of a Transformer-XL on enwik8 or WikiText-103."""
    if size not in SIZES:
        raise ValueError(f'unknown size {size!r}; known: {", ".join(SIZES)}')
    length, rows, steps, warmup = SIZES[size]
    config = language_modelling_config()

    set_fields(config.model, transformer_xl_fields(size))
    config.model.norm = 'post'
    config.data.splitting = 'end'
    if size.startswith('enwik8'):
        config.data.source = 'text:data/enwik8/enwik8'
        config.data.units = 'bytes'
        config.data.vocab_size = 256
        config.data.held_out = 0.05
        config.data.test = 0.05
    else:
        folder = 'data/wikitext-103'
        config.data.source = ','.join(
            ['text:' + f'{folder}/wiki.train.tokens', f'{folder}/wiki.valid.tokens', f'{folder}/wiki.test.tokens']
        )
        config.data.units = 'words'
        config.data.lowercase = False
        config.data.vocab_size = 267_735
        config.data.held_out = 0.0021
        config.data.test = 0.0024
        # The loss is computed in chunks of this many positions per row.
        # A chunk skips the tails of the adaptive softmax that contain none of the chunk's words.
        config.model.loss_chunk = 32
    config.data.length = length  # bytes or words per segment
    config.data.batches = 'streams'
    config.model.memory_length = length
    for field, value in zip(('context', 'memory_length', 'clamp_length'), EVALUATION[size], strict=True):
        config.eval[field] = value
    config.eval.same_length = True

    config.optimizer.learning_rate = 2.5e-4
    config.optimizer.warmup_steps = warmup
    config.optimizer.schedule = 'cosine'
    config.optimizer.bias_correction = True
    config.optimizer.eps = 1e-8
    config.optimizer.weight_decay = 0.0
    config.optimizer.clip_norm = 0.25

    config.train.steps = steps
    config.train.batch_size = rows  # number of text streams
    config.train.log_every_steps = 200
    config.checkpoint.every_steps = 4_000
    config.eval.every_steps = 4_000
    config.eval.batch_size = 8
    return config
