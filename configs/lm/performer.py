"""Causal Performers with FAVOR+ attention: decoders of text bytes, or of ImageNet64 images of 12,288 bytes.

efficient-attention train --config configs/lm/performer.py:imagenet64_6 --workdir runs/performer

The size follows the colon: regular (6 layers, 19,046,400 parameters), imagenet64_6 and imagenet64_12 (19,046,912 and
37,961,216); tests/models/test_decoder_sizes.py. All have width 512, 8 heads and 256 random features.

Recipe of Choromanski et al. 2021 (arXiv 2009.14794, appendix A.2): Adam 0.9, 0.98, 1e-9 at a constant rate of 1e-3,
weight decay 0.1, clipping 0.5, dropout 0.1. Our choices are batch, steps, the interval at which features are resampled,
positions and norms (efficient_attention/models/decoder_sizes.py). Paper: on ImageNet64, 6 layers are close to a
Reformer with 12 layers, and 12 layers are close to one with 24. Not run here.
"""

from ml_collections import ConfigDict

from configs.common import set_fields
from configs.lm.common import language_modelling_config
from efficient_attention.models.decoder_sizes import performer_fields

SIZES = ('regular', 'imagenet64_6', 'imagenet64_12')


def get_config(size: str = 'regular') -> ConfigDict:
    """Returns the config of a causal Performer on text bytes or on ImageNet64."""
    if size not in SIZES:
        raise ValueError(f'unknown size {size!r}; known: {", ".join(SIZES)}')
    config = language_modelling_config()

    set_fields(config.model, performer_fields(size))
    if size == 'regular':
        config.data.source = 'text:data/enwik8/enwik8'
        config.data.units = 'bytes'
        config.data.vocab_size = 256
        config.data.splitting = 'end'
        config.data.held_out = 0.05
        config.data.test = 0.05
        config.data.length = 8192  # bytes
    else:
        config.data.source = 'images:data/imagenet64/*.png'
        config.data.units = 'pixels'
        config.data.image_shape = (64, 64, 3)
        config.data.vocab_size = 257
        config.data.held_out = 0.01
        config.data.length = 12_288  # bytes
    config.model.attention_redraw_steps = 1000
    config.model.dtype = 'bfloat16'
    config.model.remat = 'full'

    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 0
    config.optimizer.schedule = 'constant'
    config.optimizer.bias_correction = True
    config.optimizer.beta2 = 0.98
    config.optimizer.eps = 1e-9
    config.optimizer.weight_decay = 0.1
    config.optimizer.clip_norm = 0.5

    config.train.steps = 100_000
    config.train.batch_size = 16  # rows
    config.train.log_every_steps = 100
    config.checkpoint.every_steps = 5_000
    config.eval.every_steps = 5_000
    config.eval.batch_size = 16
    return config
