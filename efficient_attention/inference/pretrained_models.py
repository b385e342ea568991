"""Builds modules with a checkpoint's parameters, for inference only."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.pretrained import Pretrained
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.inference_layout import lay_out_for_inference
from efficient_attention.models.quantized import store_int8_codes

DEFAULT_LENGTH = 512  # tokens per row, for an imported model without a position table
Module = TypeVar('Module', bound=nnx.Module)


def pretrained_module(make: Callable[[nnx.Rngs], Module], pretrained: Pretrained) -> Module:
    """Returns the module that `make` builds, with a checkpoint's parameters, laid out for the first device.

    Raises:
        InputError: the checkpoint lacks a parameter; the message names one.
    """

    def module() -> Module:
        made = make(nnx.Rngs(0))
        if pretrained.codes is not None:
            store_int8_codes(made)
        return made

    graph, state = nnx.split(nnx.eval_shape(module))
    found = pretrained.params() if pretrained.codes is None else pretrained.codes()
    params = match_tree_structure(nnx.to_pure_dict(state), found, '')
    graph, params = lay_out_for_inference(graph, params)
    return nnx.merge(graph, jax.device_put(params, jax.devices()[0]))


class EncoderWrapper(nnx.Module):
    """An encoder as the attribute `encoder`, so that its parameter paths match a checkpoint's."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.encoder = Encoder(config, rngs=rngs)


def pretrained_encoder(pretrained: Pretrained) -> Encoder:
    """Returns a checkpoint's encoder without its head; raises InputError as `pretrained_module` does."""
    return pretrained_module(lambda rngs: EncoderWrapper(pretrained.model, rngs=rngs), pretrained).encoder


def match_tree_structure(wanted: Any, found: Any, path: str) -> Any:
    """Returns the arrays of `found` in the nested structure of `wanted`.

    `path` is the part of the structure in hand, for messages. Raises InputError if an array is missing.
    """
    if isinstance(wanted, dict):
        return {
            name: match_tree_structure(part, (found or {}).get(name), f'{path}/{name}') for name, part in wanted.items()
        }
    if found is None:
        raise InputError(f'the checkpoint has no {path.removeprefix("/")}')
    return found


def row_length(pretrained: Pretrained) -> int:
    """Returns the most tokens per row for a checkpoint: its position limit, else its training length, else 512."""
    limit = pretrained.model.position_limit
    return limit or (pretrained.run.data.length if pretrained.run else DEFAULT_LENGTH)
