"""What every config starts from: all fields with their defaults, as a ConfigDict, and the papers' named sizes."""

from typing import Any

from ml_collections import ConfigDict

from efficient_attention.models.sizes import albert_fields, bert_fields, bigbird_fields, gpt2_fields, longformer_fields
from efficient_attention.training.config import default_fields

__all__ = [
    'albert_fields',
    'bert_fields',
    'bigbird_fields',
    'default_config',
    'gpt2_fields',
    'language_modelling_config',
    'longformer_fields',
    'set_fields',
]


def default_config() -> ConfigDict:
    """Every field of a run with its default value; `model.vocab_size` follows `data.vocab_size`."""
    config = ConfigDict(default_fields())
    config.model.vocab_size = config.data.get_ref('vocab_size')
    config.checkpoint.keep_best = 1
    config.checkpoint.best_metric = 'masked_lm_loss'
    return config


def language_modelling_config() -> ConfigDict:
    """Every field of a language model's run: the defaults, pre-norm layers, causal attention, no token types."""
    config = default_config()
    config.task = 'language_modelling'
    config.model.attention = 'causal'
    config.model.norm = 'pre'
    config.model.norm_epsilon = 1e-5
    config.model.token_types = 0
    config.checkpoint.best_metric = 'causal_lm_loss'
    return config


def set_fields(group: ConfigDict, fields: dict[str, Any]) -> None:
    """Sets several fields of a group; a vocabulary size that follows another field keeps following it."""
    for name, value in fields.items():
        if group[name] != value:
            group[name] = value
