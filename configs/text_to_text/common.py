"""Makes the common base of the text-to-text configs.

The model's fields have defaults, or are None until a run fills them in from a checkpoint.
"""

from ml_collections import ConfigDict, config_dict

from configs.common import default_config


def text_to_text_config() -> ConfigDict:
    """Returns the base config of text-to-text runs: the defaults, with pre-norm layers and no token types."""
    config = default_config()
    config.task = 'text_to_text'
    config.data.lowercase = False
    config.model.norm = 'pre'
    config.model.norm_epsilon = 1e-5
    config.model.token_types = 0
    config.model.target_vocab_size = config.pairs.get_ref('target_vocab_size')
    config.checkpoint.best_metric = 'target_loss'
    return config


def leave_model_open(config: ConfigDict) -> None:
    """Sets to None the fields that a text-to-text run takes from the checkpoint that it starts from."""
    config.model = ConfigDict({name: config_dict.placeholder(type(value)) for name, value in config.model.items()})
    config.data.tokenizer = config_dict.placeholder(str)
    config.data.vocab_size = config_dict.placeholder(int)
    config.pairs.target_tokenizer = config_dict.placeholder(str)
    config.pairs.begin = config_dict.placeholder(str)
    config.pairs.start = config_dict.placeholder(str)
