"""Reads the config file that --config names, and fills in the fields that it leaves out."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_flags import config_flags

from efficient_attention.config.dict_conversion import default_fields
from efficient_attention.config.run import RunConfig


class ConfigFileParser(config_flags.ConfigFileFlagParser):
    """Parser of --config: the result of a file's `get_config`, in which missing fields have their defaults."""

    def parse(self, path: str) -> Any:
        """Returns the locked config of a file; a file that cannot be opened gives an object whose use raises the error.

        Raises:
            ValueError: `get_config` returns neither a ConfigDict nor a dict.
        """
        found = super().parse(path)
        # Reading any attribute of the library's stand-in for a missing file raises the error, so its type is asked.
        if type(found).__module__ == config_flags.__name__:
            return found
        if not isinstance(found, ConfigDict | Mapping):
            wanted = 'a ConfigDict, or a dict {group: {field: value}}'
            raise ValueError(f'get_config() must return {wanted}; it returned {type(found).__name__}')
        return with_defaults(found).lock()


def with_defaults(config: ConfigDict | Mapping[str, Any]) -> ConfigDict:
    """Returns a config in which missing fields have their defaults; fields that follow others keep following them.

    Args:
        config: a ConfigDict, which gets the missing fields, or a nested dict {group: {field: value}}.
    """
    if not isinstance(config, ConfigDict):
        config = ConfigDict({name: {**one} if isinstance(one, Mapping) else one for name, one in config.items()})
    with config.unlocked():
        for name, default in default_fields(RunConfig).items():
            if name not in config:
                config[name] = default
            elif isinstance(default, dict) and isinstance(config[name], ConfigDict):
                for field in default.keys() - config[name].keys():
                    config[name][field] = default[field]
    return config
