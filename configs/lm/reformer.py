"""Reversible Reformers with LSH attention: decoders of enwik8 (rows of 65,536 bytes) or ImageNet64 (12,288 bytes).

efficient-attention train --config configs/lm/reformer.py:enwik8 --workdir runs/reformer_enwik8

The size follows the colon:
- enwik8_ablation: 3 layers, all LSH, section 5 of Kitaev et al. 2020, arXiv 2001.04451; 30,868,738 parameters.
- enwik8: 12 layers, 3 of them LSH, the code's configuration of November 2019; 139,479,298 parameters.
- imagenet64: 6 layers, all LSH; 60,402,689 parameters.

efficient_attention/models/decoder_sizes.py lists differences from the code.

Recipe of the authors' configurations: 8 rows, Adam 0.9, 0.98, a linear warm-up and then a rate of 0.03125 / sqrt(step),
100,000 steps for enwik8 and 500,000 for imagenet64. The ablation has 60,000 steps, there with Adafactor, here with
Adam. Paper: 1.19 bits per byte on enwik8 after 20,000 steps with dropout 0.1, 1.05 with more tuning. Not run here.
"""

from ml_collections import ConfigDict

from configs.common import set_fields
from configs.lm.common import language_modelling_config
from efficient_attention.models.decoder_sizes import reformer_fields

# This maps the name of a size to its warm-up steps and training steps.
SIZES = {'enwik8_ablation': (8_000, 60_000), 'enwik8': (2_000, 100_000), 'imagenet64': (8_000, 500_000)}


def get_config(size: str = 'enwik8') -> ConfigDict:
    """Returns the config of a Reformer on enwik8 or ImageNet64."""
    if size not in SIZES:
        raise ValueError(f'unknown size {size!r}; known: {", ".join(SIZES)}')
    warmup, steps = SIZES[size]
    config = language_modelling_config()

    set_fields(config.model, reformer_fields(size))
    if size == 'imagenet64':
        config.data.source = 'images:data/imagenet64/*.png'
        config.data.units = 'pixels'
        config.data.image_shape = (64, 64, 3)
        config.data.vocab_size = 257
        config.data.held_out = 0.01
        config.data.length = 12_288  # bytes
    else:
        config.data.source = 'text:data/enwik8/enwik8'
        config.data.units = 'bytes'
        config.data.vocab_size = 258  # the vocabulary size of the authors' code, which leaves two ids unused
        config.data.splitting = 'end'
        config.data.held_out = 0.05
        config.data.test = 0.05
        config.data.length = 65_536  # bytes
    config.model.feed_forward_chunk = 4096  # positions
    config.model.loss_chunk = 4096  # positions
    config.model.dtype = 'bfloat16'

    config.optimizer.learning_rate = 0.03125 / warmup**0.5
    config.optimizer.warmup_steps = warmup
    config.optimizer.schedule = 'rsqrt'
    config.optimizer.bias_correction = True
    config.optimizer.beta2 = 0.98
    config.optimizer.eps = 1e-9
    config.optimizer.weight_decay = 0.0

    config.train.steps = steps
    config.train.batch_size = 8  # rows
    config.train.log_every_steps = 100
    config.checkpoint.every_steps = 2_000
    config.eval.every_steps = 2_000
    config.eval.batch_size = 8
    return config
