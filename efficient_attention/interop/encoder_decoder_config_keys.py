"""Converts the config.json keys that only encoder-decoders have to fields of `ModelConfig`, and back."""

from collections.abc import Mapping
from typing import Any

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.config_json_keys import PROJECTIONS, TEXT_TO_TEXT_INERT, TWINS

Values = Mapping[str, Any]
SCALE, TIED = 'scale_decoder_outputs', 'tie_word_embeddings'
POSITIONS = 'max_position_embeddings'
T5_KINDS = ('t5', 'mt5')
PROJECTION = 'feed_forward_proj'
BART_ROWS = 2  # BART's position table has this many rows before the row of position 0.
THEIR_PROJECTIONS = {ours: theirs for theirs, ours in reversed(PROJECTIONS.items())}


def check_supported_settings(values: Values, kind: str) -> None:
    """Raises InputError if an encoder-decoder's config.json has an unsupported setting."""
    for key, inert in TEXT_TO_TEXT_INERT.items():
        is_followed = key == TIED and kind in T5_KINDS
        if key in values and values[key] not in inert and not is_followed:
            raise InputError(f'{key} is {values[key]!r}; read here: {" or ".join(map(repr, inert))}')
    for key, twin in TWINS.items():
        if kind not in T5_KINDS and values.get(key) is not None and values[key] != values.get(twin):
            raise InputError(f'{key} is {values[key]!r}; it must be {values.get(twin)!r}, as {twin} is')


def with_default_keys(values: Values, kind: str) -> Values:
    """Returns a config.json's keys with T5's defaults filled in: as many decoder layers as encoder layers, and gates
    for mT5.
    """
    if kind == 'mt5':
        values = {PROJECTION: 'gated-gelu', **values}
    if kind in T5_KINDS and values.get('num_decoder_layers') is None and 'num_layers' in values:
        return {**values, 'num_decoder_layers': values['num_layers']}
    return values


def text_to_text_fields(values: Values, kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the model fields that follow from several config.json keys, or from a key and the family.

    Args:
        values: the keys.
        kind: the family.
        fields: the fields that follow from one key each.
    """
    if kind == 'bart':
        return {'max_length': fields['max_length'] + BART_ROWS}
    if kind not in T5_KINDS:
        return {}
    rates = dict.fromkeys(('attention_dropout_rate', 'feed_forward_dropout_rate'), fields['dropout_rate'])
    # transformers never scales an mT5's outputs, whatever its config.json says.
    scaled = kind == 't5' and is_output_scaled(values)
    return rates | {
        'feed_forward_gate': feed_forward_activation(values)[1],
        'output_scale': scaled,
        'tied_output': scaled,
        'dense_output_bias': scaled,
    }


def feed_forward_activation(values: Values) -> tuple[str, bool]:
    """Returns this project's name of a T5's activation, and whether its feed-forward layers have gates."""
    name = values.get(PROJECTION, 'relu')
    if not isinstance(name, str) or name not in PROJECTIONS:
        raise InputError(f'{PROJECTION} is {name!r}; read here: {", ".join(PROJECTIONS)}')
    return PROJECTIONS[name]


def is_output_scaled(values: Values) -> bool:
    """Returns whether a T5 multiplies the input of its output projection by 1 / sqrt(width).

    transformers 5 has a config.json key for this scaling; in earlier versions, only tied outputs are scaled.
    """
    key = SCALE if values.get(SCALE) is not None else TIED
    value = values.get(key, True)
    if not isinstance(value, bool):
        raise InputError(f'{key} is {value!r}; it must be true or false')
    return value


def encoder_decoder_config_json(kind: str, model: ModelConfig) -> dict[str, Any]:
    """Returns the config.json keys of an encoder-decoder that do not follow from a single model field."""
    if kind in T5_KINDS:
        projection = THEIR_PROJECTIONS[model.activation, model.feed_forward_gate]
        # Before transformers 5, only `tie_word_embeddings` decided whether outputs are scaled.
        output = ({SCALE: model.output_scale} if kind == 't5' else {}) | {TIED: model.output_scale}
        return {'is_encoder_decoder': True, PROJECTION: projection} | output
    sizes = {'decoder_attention_heads': model.heads, 'decoder_ffn_dim': model.feed_forward_width}
    if kind == 'bart':
        sizes[POSITIONS] = model.max_length - BART_ROWS
    return {'is_encoder_decoder': True} | sizes
