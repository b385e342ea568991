"""Builds NNX modules with the parameters of a checkpoint, for inference only."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
from flax import nnx

from efficient_attention.config.model import ModelConfig
from efficient_attention.data.examples.text_encoder import TextEncoder, text_encoder
from efficient_attention.errors import InputError
from efficient_attention.interop.pretrained import Pretrained
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.quantized import store_int8_codes
from efficient_attention.models.unstacked_layers import lay_out_for_inference

DEFAULT_LENGTH = 512  # tokens per row for an imported model without a position limit
Module = TypeVar('Module', bound=nnx.Module)


def pretrained_module(make: Callable[[nnx.Rngs], Module], pretrained: Pretrained) -> Module:
    """Returns the module that `make` builds, with the parameters of a checkpoint, laid out for inference on the first
    device.

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
    """A module whose only attribute is an encoder, so that its parameter paths match the paths in a checkpoint."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.encoder = Encoder(config, rngs=rngs)


class DecoderWrapper(nnx.Module):
    """A module whose only attribute is a decoder, so that its parameter paths match the paths in a checkpoint."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.decoder = Decoder(config, rngs=rngs)


def pretrained_decoder(pretrained: Pretrained) -> Decoder:
    """Returns the decoder of a language model; raises InputError if the checkpoint lacks a parameter."""
    return pretrained_module(lambda rngs: DecoderWrapper(pretrained.model, rngs=rngs), pretrained).decoder


def pretrained_encoder(pretrained: Pretrained) -> Encoder:
    """Returns the encoder of a checkpoint without its head; raises InputError if the checkpoint lacks a parameter."""
    return pretrained_module(lambda rngs: EncoderWrapper(pretrained.model, rngs=rngs), pretrained).encoder


def pretrained_text_encoder(pretrained: Pretrained, path: Path) -> TextEncoder:
    """Returns the text encoder of a checkpoint with an encoder; `path` is the checkpoint's path, for messages.

    Raises:
        InputError: the checkpoint has no tokenizer, or its tokenizer has more tokens than the model.
    """
    if pretrained.tokenizer is None:
        raise InputError(f'{path}: no tokenizer there (tokenizer.json, vocab.txt or *.model)')
    encoder, vocabulary = (
        text_encoder(pretrained.tokenizer, lowercase=pretrained.lowercase),
        pretrained.model.vocab_size,
    )
    if encoder.size > vocabulary:
        raise InputError(f'{pretrained.tokenizer}: the tokenizer has {encoder.size} tokens; the model has {vocabulary}')
    return encoder


def match_tree_structure(wanted: Any, found: Any, path: str) -> Any:
    """Returns the arrays of the nested dict `found` in the structure of the nested dict `wanted`; extra arrays are left
    out.

    `path` is the path of `wanted` in the whole tree, for messages. Raises InputError if an array is missing.
    """
    if isinstance(wanted, dict):
        return {
            name: match_tree_structure(part, (found or {}).get(name), f'{path}/{name}') for name, part in wanted.items()
        }
    if found is None:
        raise InputError(f'the checkpoint has no {path.removeprefix("/")}')
    return found


def row_length(pretrained: Pretrained) -> int:
    """Returns the maximum row length in tokens for a checkpoint: its position limit, else its training length, else
    512.
    """
    limit = pretrained.model.position_limit
    return limit or (pretrained.run.data.length if pretrained.run else DEFAULT_LENGTH)
