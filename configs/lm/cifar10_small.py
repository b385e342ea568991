"""Compares mechanisms in small decoders of CIFAR-10 images as sequences of 3,072 bytes, on a laptop CPU.

efficient-attention train --config configs/lm/cifar10_small.py:strided --workdir runs/cifar10_strided

The mechanism follows the colon: strided (an image row has 96 bytes), or a mechanism of enwik8_small.py without memory.
Each image is one row after a start token, and all its bytes are predicted. The metric is bits per dimension.

Data: the training images as JPEG files in data/cifar10_jpg/train. Their pixels are lossy, so results are only
comparable among these runs. Held out: about 100 images, chosen by a hash of their bytes. scripts/convert.py exports
only encoders.
"""

from ml_collections import ConfigDict

from configs.lm.common import small_decoder_config


def get_config(mechanism: str = 'strided') -> ConfigDict:
    """Returns the config of a decoder of image bytes: 4 layers of width 128 with 4 heads, 0.8 M parameters.

    Each training step has one image.
    """
    config = small_decoder_config('full' if mechanism == 'strided' else mechanism)
    config.data.source = 'images:data/cifar10_jpg/train/**/*.jpg'
    config.data.units = 'pixels'
    config.data.image_shape = (32, 32, 3)
    config.data.vocab_size = 257
    config.data.held_out = 0.002  # share of the images that is held out
    config.data.length = 3072  # bytes
    if mechanism == 'strided':
        config.model.attention = 'sparse_strided(96)'
    config.train.batch_size = 1
    config.train.steps = 800
    config.checkpoint.every_steps = 400
    config.eval.every_steps = 800
    config.eval.batch_size = 4
    return config
