"""The common base of all configs: all fields with their defaults, as a ConfigDict."""

from typing import Any

from ml_collections import ConfigDict

from efficient_attention.config.nested_dicts import default_fields
from efficient_attention.config.run import RunConfig


def default_config() -> ConfigDict:
    """Returns every field of a run with its default value; `model.vocab_size` follows `data.vocab_size`."""
    config = ConfigDict(default_fields(RunConfig))
    config.model.vocab_size = config.data.get_ref('vocab_size')
    config.checkpoint.keep_best = 1
    config.checkpoint.best_metric = 'masked_lm_loss'
    return config


def set_fields(group: ConfigDict, fields: dict[str, Any]) -> None:
    """Sets several fields of a group; a vocabulary size that follows another field keeps following it."""
    for name, value in fields.items():
        if group[name] != value:
            group[name] = value
