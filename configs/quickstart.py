"""A small ALBERT-like encoder pretrained on the embedded corpus in minutes on a laptop CPU.

python train.py --config configs/quickstart.py --workdir runs/quickstart
"""

from ml_collections import ConfigDict

from configs.common import default_config


def get_config() -> ConfigDict:
    """Masked-LM and sentence order on the documentation of Python's own standard library."""
    config = default_config()

    config.data.source = 'stdlib'
    config.data.held_out = 0.05
    config.data.tokenizer = 'train:unigram'
    config.data.vocab_size = 4096
    config.data.length = 128  # tokens
    config.data.pairs = 'sop'
    config.data.mask_unit = 'word'
    config.data.max_masked = 20

    config.model.width = 128
    config.model.heads = 2
    config.model.layers = 3
    config.model.norm = 'pre'
    config.model.max_length = 128
    config.model.dropout_rate = 0.0
    config.model.attention_dropout_rate = 0.0
    config.model.scan_unroll = 3

    config.optimizer.learning_rate = 2e-3
    config.optimizer.warmup_steps = 100
    config.optimizer.schedule = 'linear'
    config.optimizer.bias_correction = True

    config.train.steps = 1000
    config.train.batch_size = 32
    config.train.log_every_steps = 20
    config.checkpoint.every_steps = 500
    config.eval.every_steps = 250
    config.eval.batch_size = 32
    return config
