"""Imports a Hugging Face model folder: its config.json as this project's configs, and its tensors as this project's
parameters.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from efficient_attention.errors import InputError
from efficient_attention.interop.compressed_tensors import (
    check_readable,
    is_compressed,
    quantized_kernel_paths,
    read_int8_codes,
)
from efficient_attention.interop.config_import import CONFIG, ModelDescription, parse_config_json
from efficient_attention.interop.generation_config import read_generation_config
from efficient_attention.interop.int8_codes import flatten_by_path, quantize_params, unflatten_paths
from efficient_attention.interop.low_rank_factors import factor_params
from efficient_attention.interop.output_layers import with_output_layer_fields
from efficient_attention.interop.padded_layers import padded_config, unpad_layers
from efficient_attention.interop.safetensors_files import SafetensorsFolder, check_tensor_files
from efficient_attention.interop.tensor_conversion import (
    CheckpointHeads,
    has_head_weights,
    list_checkpoint_tensors,
    parameter_shapes,
    read_tensors,
    tensor_names_by_plain_name,
)
from efficient_attention.interop.tokenizer_files import is_lowercase, tokenizer_file
from efficient_attention.interop.trained_model import Pretrained


def read_folder(path: Path, values: dict[str, Any]) -> Pretrained:
    """Returns the trained model stored in a Hugging Face folder.

    Args:
        path: the folder.
        values: the keys of its config.json.

    Raises:
        InputError: config.json has an unsupported setting, or there are no safetensors. `params` raises InputError if
            tensors are missing, unexpected or of another shape.
    """
    try:
        known = parse_config_json(values)
        check_readable(values, known.model)
    except InputError as error:
        raise InputError(f'{path / CONFIG}: {error}') from None
    check_tensor_files(path)
    known = with_output_layer_fields(path, known, values)
    return Pretrained(
        model=known.model,
        head=known.head,
        labels=known.labels,
        problem=known.problem,
        family=known.family.model_type,
        tokenizer=tokenizer_file(path),
        lowercase=is_lowercase(path, known.family.model_type),
        params=lambda: _read_params(path, known),
        extra=values,
        generation=read_generation_config(path) if known.family.decoder else {},
        examples=known.examples,
        pairs=known.pairs,
        thresholds=lambda: known.thresholds,
        origin=lambda: str(path),
        codes=(lambda: _read_compressed(path, known)) if is_compressed(values) else None,
    )


def _read_params(path: Path, known: ModelDescription) -> dict[str, Any]:
    folder = SafetensorsFolder(path)
    parts = find_heads_in_file(known, tensor_names_by_plain_name(known.family, folder.shapes))
    params = read_tensors(
        known.family, list_checkpoint_tensors(known.family, padded_config(known.model), parts), folder
    )
    try:
        found = unpad_layers(known.model, params)
        return factor_params(found, parameter_shapes(known.model, parts)) if known.model.ranks else found
    except InputError as error:
        raise InputError(f'{path}: {error}') from None


def _read_compressed(path: Path, known: ModelDescription) -> dict[Any, Any]:
    """Returns a quantized folder's parameters as nested dicts, where quantized kernels keep their stored int8 codes."""
    folder = SafetensorsFolder(path)
    flat = quantize_params(flatten_by_path(_read_params(path, known)), known.model, known.head)
    parts = find_heads_in_file(known, tensor_names_by_plain_name(known.family, folder.shapes))
    tensors = list_checkpoint_tensors(known.family, known.model, parts)
    return unflatten_paths(
        read_int8_codes(flat, quantized_kernel_paths(known.model, known.head), tensors, folder, known.family)
    )


def find_heads_in_file(known: ModelDescription, found: Mapping[str, str]) -> CheckpointHeads:
    """Returns which prediction heads a Hugging Face model has: those that its class name requires, and pretraining
    heads whose tensors are in the file.
    """
    family, ending = known.family, known.ending
    if family.decoder:
        return CheckpointHeads(has_decoder=family.is_encoder_decoder, is_decoder=family.is_language_model)
    if known.head.kind != 'none':
        return CheckpointHeads(known.head)
    if family.detector and ending == 'ForPreTraining':
        return CheckpointHeads(has_detector=True)
    is_both = ending == 'ForPreTraining' and bool(family.pair)
    has_pair = bool(family.pair) and (
        is_both or ending == 'ForNextSentencePrediction' or has_head_weights(family, {'pair': family.pair}, found)
    )
    return CheckpointHeads(
        has_masked_lm=is_both or ending == 'ForMaskedLM' or has_head_weights(family, family.masked_lm, found),
        has_pooler=bool(family.pooler) and (has_pair or has_head_weights(family, {'pooler': family.pooler}, found)),
        has_pair=has_pair,
    )
