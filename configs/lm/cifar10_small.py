"""Small image models: CIFAR-10 as sequences of 3,072 bytes, on a laptop CPU: mechanisms side by side.

python train.py --config configs/lm/cifar10_small.py:strided --workdir runs/cifar10_strided

The mechanism follows the colon: strided (a row of an image is 96 bytes), or one of enwik8_small.py without memory.
Every image is a row behind a start token, and all of its bytes are predicted; evaluation is in bits per dimension.

Data: the training images as JPEG files in data/cifar10_jpg/train, so pixels are lossy and figures compare only among
themselves; held out: about 100 of them, by a hash of their bytes. scripts/convert.py exports encoders alone.
"""

from ml_collections import ConfigDict

from configs.lm.common import small_decoder_config


def get_config(mechanism: str = 'strided') -> ConfigDict:
    """4 layers of 128 with 4 heads, 0.8 M parameters, one image a step."""
    config = small_decoder_config('full' if mechanism == 'strided' else mechanism)
    config.data.source = 'images:data/cifar10_jpg/train/**/*.jpg'
    config.data.units = 'pixels'
    config.data.image_shape = (32, 32, 3)
    config.data.vocab_size = 257
    config.data.held_out = 0.002  # of the images
    config.data.length = 3072  # bytes
    if mechanism == 'strided':
        config.model.attention = 'sparse_strided(96)'
    config.train.batch_size = 1
    config.train.steps = 800
    config.checkpoint.every_steps = 400
    config.eval.every_steps = 800
    config.eval.batch_size = 4
    return config
