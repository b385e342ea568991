"""A pretrained encoder with some of its layers, so that a student begins with what a larger model has learned."""

import dataclasses
from typing import Any

import jax
import numpy as np

from efficient_attention.config.layer_numbers import layer_list
from efficient_attention.errors import InputError
from efficient_attention.interop.pretrained import Pretrained

FIELD = 'train.start_layers'


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
