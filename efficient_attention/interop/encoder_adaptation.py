"""Adapts a pretrained encoder before further training: keeps only some layers, extends its position table, or replaces
its attention mechanism.

A small student can thus start from a large model's layers, and a model of short texts can read long documents.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

from efficient_attention.config.dict_conversion import check_integer_not_too_large
from efficient_attention.config.layer_numbers import parse_layer_list
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.pretrained import Pretrained, check_convertible
from efficient_attention.models.device_memory import check_host_fits

FIELD = 'train.start_layers'
PROJECTIONS = ('query', 'key', 'value')


def pick_layers(pretrained: Pretrained, layers: str) -> Pretrained:
    """Returns the encoder with only the given layers, in the given order; embeddings and heads stay unchanged.

    DistilBERT starts from every second layer of BERT, including the first and the last (Sanh et al. 2019, arXiv
    1910.01108, section 3).

    Args:
        pretrained: the encoder, with its heads.
        layers: layer numbers with commas, counted from 1, such as '1,3,5'.

    Raises:
        InputError: a layer does not exist; or the layers are shared, differ in size, alternate between mechanisms or
            form two stacks.
    """
    model = pretrained.model
    numbers = parse_layer_list(FIELD, layers, model.layers)
    check_convertible(pretrained, 'reduced to some of its layers')
    if model.decoder_layers:
        raise InputError(f'{FIELD} is {layers!r}; layers of an encoder-decoder cannot be picked')
    if model.has_layer_specific_sizes:
        raise InputError(f'{FIELD} is {layers!r}; layers of different sizes cannot be picked')
    if model.sharing == 'all':
        raise InputError(f"{FIELD} is {layers!r}; model.sharing 'all' has no separate layers; set model.layers instead")
    if len(model.mechanisms) > 1 or model.directions_apart:
        field = 'attention' if len(model.mechanisms) > 1 else 'directions_apart'
        raise InputError(f'{FIELD} is {layers!r}; with model.{field} {getattr(model, field)!r} layers are not alike')
    fewer = dataclasses.replace(model, layers=len(numbers))
    return dataclasses.replace(
        pretrained, model=fewer, params=lambda: picked_params(pretrained.params(), numbers), codes=None
    )


def picked_params(params: dict[str, Any], numbers: tuple[int, ...]) -> dict[str, Any]:
    """Returns the model's parameters with only the given encoder layers, whose numbers count from 1."""
    encoder, places = params['encoder'], np.asarray(numbers) - 1
    stack = encoder['stack']
    layers = jax.tree.map(lambda array: array[places], stack['layers'])
    return params | {'encoder': encoder | {'stack': stack | {'layers': layers}}}


def extend_positions(
    pretrained: Pretrained, *, length: int | None = None, attention: str | None = None, global_tokens: int | None = None
) -> Pretrained:
    """Adapts an encoder to longer inputs: extends its learned position table, replaces its attention, and adds
    projections for global tokens.

    The position table is filled with copies of itself, as Longformer started from RoBERTa's (Beltagy et al. 2020, arXiv
    2004.05150, section 5). Table rows that no position uses stay in front. Projections for global tokens start as
    copies of the ordinary projections, as in the same paper. A row within the old length keeps its vectors if all its
    tokens lie in each other's window.

    Args:
        pretrained: the encoder.
        length: most tokens per row; None = unchanged.
        attention: a mechanism's text form, or several with ';'; None = unchanged.
        global_tokens: most global tokens per row; None = unchanged.

    Raises:
        InputError: the encoder has no learned positions, or already has this many; the attention cannot be read; or
            more than the encoder's attention is changed in an encoder-decoder.
    """
    model = pretrained.model
    fields: dict[str, Any] = {}
    if model.decoder_layers and (length is not None or global_tokens is not None):
        raise InputError(f'model.decoder_layers is {model.decoder_layers}; an encoder-decoder cannot be lengthened')
    if length is not None:
        check_length(model, length)
        fields['max_length'] = length + model.position_offset
    if attention is not None:
        fields['attention'] = attention
    if global_tokens is not None:
        check_integer_not_too_large(global_tokens, 'global_tokens')
        fields['global_tokens'] = global_tokens
    longer = dataclasses.replace(model, **fields)
    if longer == model:
        return pretrained
    check_convertible(pretrained, 'given other positions or another attention')
    return dataclasses.replace(
        pretrained, model=longer, params=lambda: longer_params(pretrained.params(), model, longer), codes=None
    )


def check_length(model: ModelConfig, length: int) -> None:
    """Raises InputError if the model has no learned position table shorter than `length`, or if the longer table does
    not fit in host memory.
    """
    if model.positions != 'learned':
        raise InputError(f'model.positions is {model.positions!r}; only a learned table can be made longer')
    if length <= (model.position_limit or 0):
        raise InputError(f'{length} positions; the model has {model.position_limit} already')
    # 4 bytes per number, because the table is float32
    check_host_fits(length * model.embedding_width * 4, f'{length} positions')


def longer_params(params: dict[str, Any], before: ModelConfig, after: ModelConfig) -> dict[str, Any]:
    """Returns the model's parameters with the extended position table, and with projections for global tokens added or
    removed.
    """
    if after.decoder_layers:
        return params
    encoder = params['encoder']
    embeddings, stack = encoder['embeddings'], encoder['stack']
    if before.max_length != after.max_length:
        table_LE = embeddings['position']['embedding']
        longer_LE = tile_position_table(table_LE, before.position_offset, after.max_length)
        embeddings = embeddings | {'position': {'embedding': longer_LE}}
    # A model with layers of different sizes cannot have global tokens, so for it the function always returns here.
    # The code after this line assumes that all layers have one size.
    if bool(after.global_tokens) == bool(before.global_tokens):
        return params | {'encoder': encoder | {'embeddings': embeddings}}
    attention = dict(stack['layers']['attention'])
    if after.global_tokens and not before.global_tokens:
        attention['global_projections'] = {name: attention[name] for name in PROJECTIONS}
    elif before.global_tokens and not after.global_tokens:
        del attention['global_projections']
    layers = stack['layers'] | {'attention': attention}
    return params | {'encoder': encoder | {'embeddings': embeddings, 'stack': stack | {'layers': layers}}}


def tile_position_table(table_LE: np.ndarray, offset: int, rows: int) -> np.ndarray:
    """Returns a position table of `rows` rows: the first `offset` rows of the old table, then repeated copies of its
    other rows.

    The last copy may be cut.
    """
    own_LE = table_LE[offset:]
    copies = -(-(rows - offset) // len(own_LE))
    return np.concatenate([table_LE[:offset], np.tile(own_LE, (copies, 1))])[:rows]
