"""Modules with the parameters of a checkpoint, for use and not for training."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.pretrained import Pretrained
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.inference_layout import for_inference
from efficient_attention.models.quantized import store_codes

DEFAULT_LENGTH = 512  # tokens a row of a model from outside that has no table of positions
Module = TypeVar('Module', bound=nnx.Module)


def pretrained_module(make: Callable[[nnx.Rngs], Module], pretrained: Pretrained) -> Module:
    """The module that `make` describes, with a checkpoint's parameters, laid out for inference, on the first device.

    Raises:
        InputError: the checkpoint lacks some of them; names one.
    """

    def module() -> Module:
        made = make(nnx.Rngs(0))
        if pretrained.codes is not None:
            store_codes(made)
        return made

    graph, state = nnx.split(nnx.eval_shape(module))
    found = pretrained.params() if pretrained.codes is None else pretrained.codes()
    params = matched(nnx.to_pure_dict(state), found, '')
    graph, params = for_inference(graph, params)
    return nnx.merge(graph, jax.device_put(params, jax.devices()[0]))


class EncoderAlone(nnx.Module):
    """An encoder under the path that checkpoints have it at."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.encoder = Encoder(config, rngs=rngs)


def pretrained_encoder(pretrained: Pretrained) -> Encoder:
    """The encoder of a checkpoint without its head; raises InputError as `pretrained_module`."""
    return pretrained_module(lambda rngs: EncoderAlone(pretrained.model, rngs=rngs), pretrained).encoder


def matched(wanted: Any, found: Any, path: str) -> Any:
    """The arrays of `found` in the structure of `wanted`."""
    if isinstance(wanted, dict):
        return {name: matched(part, (found or {}).get(name), f'{path}/{name}') for name, part in wanted.items()}
    if found is None:
        raise InputError(f'the checkpoint has no {path.removeprefix("/")}')
    return found


def row_length(pretrained: Pretrained) -> int:
    """Tokens of the longest row that a checkpoint is meant for: as many as it has positions or was trained on."""
    limit = pretrained.model.position_limit
    return limit or (pretrained.run.data.length if pretrained.run else DEFAULT_LENGTH)
