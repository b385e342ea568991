"""Arithmetic."""

from ml_collections import ConfigDict

from configs.common import set_fields
from configs.lm.common import language_modelling_config


def get_config() -> ConfigDict:
    """Returns the config of a decoder of arithmetic problems, in characters: 2 layers of width 128 with 4 heads."""
    config = language_modelling_config()
    config.data.source = 'jsonl:data/arithmetic/*.jsonl#text'
    config.data.units = 'characters'
    config.data.vocab_size = 64
    config.data.held_out = 0.005
    config.data.length = 384
    config.data.cut_at_documents = True

    set_fields(config.model, {'width': 128, 'layers': 2, 'heads': 4, 'positions': 'none', 'rotary': True})
    set_fields(config.model, {'dropout_rate': 0.0, 'attention_dropout_rate': 0.0, 'init_std': 0.1})

    set_fields(config.optimizer, {'learning_rate': 2e-3, 'warmup_steps': 200, 'schedule': 'cosine'})
    config.optimizer.bias_correction = True
    config.train.steps = 12_000
    config.train.batch_size = 4
    config.eval.every_steps = 1000
    config.eval.batch_size = 32
    config.checkpoint.every_steps = 1000
    return config
