"""Converts the config.json keys that only language models (GPT-2) have to fields of `ModelConfig`, and back."""

from collections.abc import Mapping
from typing import Any

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.config_json_keys import LANGUAGE_MODEL_INERT

Values = Mapping[str, Any]
CODE = 'auto_map'  # names Python files of the folder, which transformers runs with `trust_remote_code`
INNER, WIDTH = 'n_inner', 'n_embd'
EMBEDDING_DROPOUT, DROPOUT = 'embd_pdrop', 'resid_pdrop'


def check_language_model_settings(values: Values) -> None:
    """Raises InputError if a language model's config.json has an unsupported setting."""
    if values.get(CODE):
        raise InputError(
            f'{CODE} is {values[CODE]!r}; the model is code in its folder (trust_remote_code), which is never run'
        )
    for key, inert in LANGUAGE_MODEL_INERT.items():
        if key in values and values[key] not in inert:
            raise InputError(f'{key} is {values[key]!r}; read here: {" or ".join(map(repr, inert))}')
    rates = [values.get(key, 0.1) for key in (EMBEDDING_DROPOUT, DROPOUT)]
    if rates[0] != rates[1]:
        raise InputError(f'{EMBEDDING_DROPOUT} is {rates[0]!r}; it must be {rates[1]!r}, as {DROPOUT} is')


def with_feed_forward_width(values: Values) -> Values:
    """Returns a config.json's keys with GPT-2's default feed-forward width: four times the model's width."""
    width = values.get(WIDTH)
    return {**values, INNER: 4 * width} if values.get(INNER) is None and type(width) is int else values


def language_model_config_json(model: ModelConfig) -> dict[str, Any]:
    """Returns the config.json keys of a language model that do not follow from a single model field."""
    return {EMBEDDING_DROPOUT: model.dropout_rate, 'tie_word_embeddings': True}
