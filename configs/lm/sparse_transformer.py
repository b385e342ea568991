"""Sparse Transformers: fixed sparse attention on enwik8, strided sparse attention on CIFAR-10 and ImageNet64 images.

efficient-attention train --config configs/lm/sparse_transformer.py:cifar10 --workdir runs/sparse_cifar10

The size follows the colon (tests/models/test_decoder_sizes.py):
- enwik8: 30 layers of width 512, 12,288 bytes; 94,949,632 parameters.
- cifar10: 128 layers of width 256, 3,072 bytes; 67,618,817 parameters, because queries and keys are not halved in
  width.
- imagenet64: 48 layers of width 512, 12,288 bytes; 151,645,953 parameters.

Recipe of Child et al. 2019 (arXiv 1904.10509, sections 6 and 7): Adam, weight decay 0.01, clipping 1.0, 5,000 steps of
warm-up and a cosine; 80, 120 and 70 epochs. The paper gives the rate, 3.5e-4, only for CIFAR-10. The batch is our
choice. Paper: 0.99 bits per byte, 2.80 and 3.44 bits per dimension. Not run here.
"""

from ml_collections import ConfigDict

from configs.common import set_fields
from configs.lm.common import language_modelling_config
from efficient_attention.models.decoder_sizes import sparse_fields

# This maps the name of a size to its rows per batch, and the training steps of its epochs.
SIZES = {'enwik8': (8, 73_240), 'cifar10': (32, 180_000), 'imagenet64': (64, 1_400_000)}
SIDES = {'cifar10': 32, 'imagenet64': 64}  # pixels of an image's height and width


def get_config(size: str = 'enwik8') -> ConfigDict:
    """Returns the config of a Sparse Transformer on enwik8, CIFAR-10 or ImageNet64."""
    if size not in SIZES:
        raise ValueError(f'unknown size {size!r}; known: {", ".join(SIZES)}')
    rows, steps = SIZES[size]
    config = language_modelling_config()

    set_fields(config.model, sparse_fields(size))
    if size in SIDES:
        side = SIDES[size]
        config.data.source = f'images:data/{size}/*.png'
        config.data.units = 'pixels'
        config.data.image_shape = (side, side, 3)
        config.data.vocab_size = 257
        config.data.held_out = 0.04 if size == 'cifar10' else 0.01  # share of the images that is held out
        config.data.length = side * side * 3  # bytes
    else:
        config.data.source = 'text:data/enwik8/enwik8'
        config.data.units = 'bytes'
        config.data.vocab_size = 256
        config.data.splitting = 'end'
        config.data.held_out = 0.05
        config.data.test = 0.05
        config.data.length = 12_288  # bytes
    config.model.dtype = 'bfloat16'
    config.model.remat = 'full'

    config.optimizer.learning_rate = 3.5e-4
    config.optimizer.warmup_steps = 5_000
    config.optimizer.schedule = 'cosine'
    config.optimizer.bias_correction = True
    config.optimizer.eps = 1e-8

    config.train.steps = steps
    config.train.batch_size = rows
    config.train.log_every_steps = 100
    config.checkpoint.every_steps = 2_000
    config.eval.every_steps = 5_000
    config.eval.batch_size = 8
    return config
