"""Makes the common base of all configs: a ConfigDict with every field and its default value."""

from typing import Any

from ml_collections import ConfigDict

from efficient_attention.config.dict_conversion import default_fields
from efficient_attention.config.run import RunConfig


def default_config() -> ConfigDict:
    """Returns a config with the default value of every field; `model.vocab_size` follows `data.vocab_size`."""
    config = ConfigDict(default_fields(RunConfig))
    config.model.vocab_size = config.data.get_ref('vocab_size')
    config.checkpoint.keep_best = 1
    config.checkpoint.best_metric = 'masked_lm_loss'
    return config


def set_fields(group: ConfigDict, fields: dict[str, Any]) -> None:
    """Sets several fields of one config group, except fields that already have the value.

    So a vocabulary size that follows another field keeps following it, if both are equal.
    """
    for name, value in fields.items():
        if group[name] != value:
            group[name] = value
