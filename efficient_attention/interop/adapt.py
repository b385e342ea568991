"""A pretrained encoder in another form: some of its layers, more positions, or another attention.

So a small student begins with what a large model has learned, and a model of short texts reads long documents.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

from efficient_attention.config.layer_numbers import layer_list
from efficient_attention.config.model import ModelConfig
from efficient_attention.config.nested_dicts import check_size
from efficient_attention.errors import InputError
from efficient_attention.interop.pretrained import Pretrained
from efficient_attention.models.device_memory import check_host_fits

FIELD = 'train.start_layers'
PROJECTIONS = ('query', 'key', 'value')


def pick_layers(pretrained: Pretrained, layers: str) -> Pretrained:
    """The same encoder with these of its layers one after another, and all else as it was.

    So DistilBERT begins with every second layer of BERT, the first and the last among them (Sanh et al. 2019, arXiv
    1910.01108, section 3).

    Args:
        pretrained: the encoder, with the heads that it has.
        layers: numbers with commas, counted from 1, such as '1,3,5'.

    Raises:
        InputError: a number is none of its layers, or its layers are shared, differ in size, take several mechanisms
            in turn or stand in two stacks.
    """
    model = pretrained.model
    numbers = layer_list(FIELD, layers, model.layers)
    if model.decoder_layers:
        raise InputError(f'{FIELD} is {layers!r}; an encoder-decoder begins with all of its layers')
    if model.is_uneven:
        raise InputError(f'{FIELD} is {layers!r}; layers with heads or units of their own begin all together')
    if model.sharing == 'all':
        raise InputError(f"{FIELD} is {layers!r}; model.sharing 'all' has no layers apart, set model.layers instead")
    if len(model.mechanisms) > 1 or model.directions_apart:
        field = 'attention' if len(model.mechanisms) > 1 else 'directions_apart'
        raise InputError(f'{FIELD} is {layers!r}; with model.{field} {getattr(model, field)!r} layers are not alike')
    fewer = dataclasses.replace(model, layers=len(numbers))
    return dataclasses.replace(
        pretrained, model=fewer, params=lambda: picked_params(pretrained.params(), numbers), codes=None
    )


def picked_params(params: dict[str, Any], numbers: tuple[int, ...]) -> dict[str, Any]:
    """The parameters with these layers of the stack alone."""
    encoder, places = params['encoder'], np.asarray(numbers) - 1
    stack = encoder['stack']
    layers = jax.tree.map(lambda array: array[places], stack['layers'])
    return params | {'encoder': encoder | {'stack': stack | {'layers': layers}}}


def lengthen(
    pretrained: Pretrained, *, length: int | None = None, attention: str | None = None, global_tokens: int | None = None
) -> Pretrained:
    """The same encoder with `length` positions, this attention and projections for global tokens.

    The table of positions becomes copies of itself one after another, as Longformer began from RoBERTa's (Beltagy et
    al. 2020, arXiv 2004.05150, section 5); rows that no position uses stay in front. Global tokens begin with copies
    of the ordinary projections, likewise. A row within the old length whose tokens all lie in each other's window has
    the same vectors as before.

    Args:
        pretrained: the encoder.
        length: most tokens of a row; None = as before.
        attention: a mechanism's text form, or several with ';'; None = as before.
        global_tokens: most of a row that data may mark as global; None = as before.

    Raises:
        InputError: the encoder learned no positions or has this many, or the attention cannot be read; or an
            encoder-decoder is to have more than another attention of its encoder.
    """
    model = pretrained.model
    fields: dict[str, Any] = {}
    if model.decoder_layers and (length is not None or global_tokens is not None):
        raise InputError(f'model.decoder_layers is {model.decoder_layers}; an encoder-decoder gets no more positions')
    if length is not None:
        check_length(model, length)
        fields['max_length'] = length + model.position_offset
    if attention is not None:
        fields['attention'] = attention
    if global_tokens is not None:
        check_size(global_tokens, 'global_tokens')
        fields['global_tokens'] = global_tokens
    longer = dataclasses.replace(model, **fields)
    if longer == model:
        return pretrained
    return dataclasses.replace(
        pretrained, model=longer, params=lambda: longer_params(pretrained.params(), model, longer), codes=None
    )


def check_length(model: ModelConfig, length: int) -> None:
    """Raises InputError unless the model has a table of fewer positions, and there is room for one of so many."""
    if model.positions != 'learned':
        raise InputError(f'model.positions is {model.positions!r}; only a learned table can be made longer')
    if length <= (model.position_limit or 0):
        raise InputError(f'{length} positions; the model has {model.position_limit} already')
    check_host_fits(length * model.embedding_width * 4, f'{length} positions')  # a float32 table


def longer_params(params: dict[str, Any], before: ModelConfig, after: ModelConfig) -> dict[str, Any]:
    """The parameters with the longer table and the new projections."""
    if after.decoder_layers:
        return params
    encoder = params['encoder']
    embeddings, stack = encoder['embeddings'], encoder['stack']
    if before.max_length != after.max_length:
        table_LE = embeddings['position']['embedding']
        longer_LE = tiled(table_LE, before.position_offset, after.max_length)
        embeddings = embeddings | {'position': {'embedding': longer_LE}}
    if bool(after.global_tokens) == bool(before.global_tokens):  # so of layers that differ in size, which have none
        return params | {'encoder': encoder | {'embeddings': embeddings}}
    attention = dict(stack['layers']['attention'])
    if after.global_tokens and not before.global_tokens:
        attention['global_projections'] = {name: attention[name] for name in PROJECTIONS}
    elif before.global_tokens and not after.global_tokens:
        del attention['global_projections']
    layers = stack['layers'] | {'attention': attention}
    return params | {'encoder': encoder | {'embeddings': embeddings, 'stack': stack | {'layers': layers}}}


def tiled(table_LE: np.ndarray, offset: int, rows: int) -> np.ndarray:
    """`rows` rows: the first `offset`, then the others again and again; the last copy is cut."""
    own_LE = table_LE[offset:]
    copies = -(-(rows - offset) // len(own_LE))
    return np.concatenate([table_LE[:offset], np.tile(own_LE, (copies, 1))])[:rows]
