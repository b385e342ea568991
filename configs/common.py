"""What every config starts from: all fields with their defaults, as a ConfigDict."""

from ml_collections import ConfigDict

from efficient_attention.training.config import default_fields


def default_config() -> ConfigDict:
    """Every field of a run with its default value; `model.vocab_size` follows `data.vocab_size`."""
    config = ConfigDict(default_fields())
    config.model.vocab_size = config.data.get_ref('vocab_size')
    config.checkpoint.keep_best = 1
    config.checkpoint.best_metric = 'masked_lm_loss'
    return config
