"""Writes compact exports, the project's smallest model folders, and converts a model to 8-bit integer arithmetic."""

import dataclasses
from pathlib import Path

from efficient_attention.atomic_files import atomic_folder
from efficient_attention.config.dict_conversion import to_dict
from efficient_attention.errors import InputError
from efficient_attention.interop.compact_import import MODEL_TYPE, SHAPES, VERSION
from efficient_attention.interop.config_import import CONFIG
from efficient_attention.interop.config_json_keys import TEXT_TO_TEXT
from efficient_attention.interop.export_checksums import write_export_checksums
from efficient_attention.interop.huggingface_export import quantized_params, write_json
from efficient_attention.interop.int8_codes import packed, quantized_paths
from efficient_attention.interop.pretrained import Pretrained, check_convertible
from efficient_attention.interop.safetensors_files import write_tensors
from efficient_attention.interop.tokenizer_files import copy_tokenizer
from efficient_attention.models.quantized import check_float_layers, check_some_rounded
from efficient_attention.processes.phase_log import WRITING, note_phase


def quantize(pretrained: Pretrained, mode: str, float_layers: tuple[str, ...] = ()) -> Pretrained:
    """Returns the encoder with layers that round weights and inputs to 8 bits.

    Args:
        pretrained: an encoder. One that was trained with rounding can only keep its settings.
        mode: 'int8' or 'int8_weights', see `ModelConfig`.
        float_layers: regexes for the paths of layers that stay float; () = the model's.

    Raises:
        InputError: the model is an encoder-decoder, it already rounds otherwise, or a regex is invalid or unused.
    """
    check_convertible(pretrained, 'quantized')
    if pretrained.problem == TEXT_TO_TEXT:
        raise InputError('an encoder-decoder cannot be quantized; only encoders can')
    own = pretrained.model.quantization, pretrained.model.float_layers
    if own[0] != 'none':
        if (mode, float_layers or own[1]) == own:
            return pretrained
        how = 'the model was trained with' if pretrained.codes is None else 'the model holds int8 codes already, with'
        advice = 'use the same options' if pretrained.codes is None else 'quantize the model that it was made from'
        raise InputError(
            f'{how} model.quantization {own[0]!r} and model.float_layers {", ".join(own[1]) or "()"}; {advice}'
        )
    model = dataclasses.replace(pretrained.model, quantization=mode, float_layers=float_layers)
    check_float_layers(float_layers, quantized_paths(dataclasses.replace(model, float_layers=()), pretrained.head))
    check_some_rounded(float_layers, quantized_paths(model, pretrained.head))
    return dataclasses.replace(pretrained, model=model, codes=None)


def save_compact(folder: Path, pretrained: Pretrained) -> None:
    """Writes a compact export: a model folder in the smallest format that this project reads. The folder appears only
    once it is complete.

    Args:
        folder: the output folder; it must be missing or empty.
        pretrained: an encoder with its heads; if it is quantized, kernels and tables are stored as int8.

    Raises:
        InputError: the model is an encoder-decoder, or the folder is not empty.
        RunError: the disk is full.
    """
    check_convertible(pretrained, 'written as a compact export')
    if pretrained.problem == TEXT_TO_TEXT:
        raise InputError('an encoder-decoder has no compact export; only encoders have')
    model, head = pretrained.model, pretrained.head
    stored = packed(quantized_params(pretrained))
    values = {
        'model_type': MODEL_TYPE,
        'version': VERSION,
        'model': to_dict(model),
        'head': to_dict(head),
        'labels': list(pretrained.labels),
        'problem': pretrained.problem,
        'family': pretrained.family,
        'lowercase': pretrained.lowercase,
        'extra': dict(pretrained.extra),
        'examples': dict(pretrained.examples),
        'thresholds': dict(pretrained.thresholds()),
        SHAPES: stored.shapes,
    }
    note_phase(WRITING)
    with atomic_folder(folder) as partial:
        write_tensors(partial, stored.tensors, is_stored=True)
        longest = model.position_limit or model.max_length
        copy_tokenizer(pretrained.tokenizer, partial, longest, has_types=model.token_types > 1)
        write_json(partial / CONFIG, values)
        write_export_checksums(partial)
