"""Exports a trained model as a Hugging Face folder, which transformers can load."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from efficient_attention.atomic_files import atomic_folder
from efficient_attention.config.model import ModelConfig
from efficient_attention.data.tokenizers.loading import load_tokenizer
from efficient_attention.data.tokenizers.text_to_text_special_ids import find_text_to_text_special_ids
from efficient_attention.errors import InputError
from efficient_attention.interop.compressed_tensors import (
    check_compressible,
    compressed_params,
    quantization_config,
    weight_scales,
)
from efficient_attention.interop.config_export import QUANTIZED, make_config_json
from efficient_attention.interop.config_import import CONFIG
from efficient_attention.interop.config_json_keys import SHIFTED
from efficient_attention.interop.export_checksums import write_export_checksums
from efficient_attention.interop.generation_config import GENERATION, with_token_ids
from efficient_attention.interop.huggingface_tensor_names import FAMILIES, HuggingFaceFamily
from efficient_attention.interop.int8_codes import Flat, flatten_by_path, quantize_params
from efficient_attention.interop.low_rank_factors import multiply_factors
from efficient_attention.interop.output_layers import with_duplicate_tensors
from efficient_attention.interop.padded_layers import pad_layers, padded_config
from efficient_attention.interop.pretrained import Pretrained, check_convertible
from efficient_attention.interop.safetensors_files import write_tensors
from efficient_attention.interop.target_token_ids import (
    pretrained_generation_config,
    trained_token_ids,
    trained_tokenizer_json,
)
from efficient_attention.interop.tensor_conversion import CheckpointHeads, export_tensors, list_checkpoint_tensors
from efficient_attention.interop.tokenizer_files import copy_tokenizer, padding_id
from efficient_attention.processes.phase_log import WRITING, note_phase


def save_pretrained(
    folder: Path, pretrained: Pretrained, tokenizer: Path | None = None, *, compresses: bool = False
) -> None:
    """Writes a model as a Hugging Face folder for transformers: config.json, model.safetensors, tokenizer files, and
    checksums.

    The folder appears only once everything is written.

    Args:
        folder: the output folder; it must be missing or empty.
        pretrained: a model from `open_pretrained`, or built in memory.
        tokenizer: the tokenizer file; None = `pretrained.tokenizer`.
        compresses: write a quantized model's kernels as int8 and its tables as float16, under the names that
            transformers loads with the package compressed-tensors.

    Raises:
        InputError: no Hugging Face family supports the model, it has two tokenizers or reverses sources, or the folder
            is not empty.
        RunError: the disk is full.
    """
    if pretrained.target_tokenizer is not None:
        raise InputError('pairs.target_tokenizer: the model has two tokenizers; a Hugging Face folder holds one')
    if pretrained.run is not None and pretrained.run.pairs.reverse_source:
        raise InputError('pairs.reverse_source is True; no tokenizer of a Hugging Face folder reverses texts')
    if compresses:
        check_convertible(pretrained, 'exported in 8 bits')
        check_compressible(pretrained.model, pretrained.head)
    params = pad_layers(pretrained.model, multiply_factors(pretrained.params()))
    tokenizer = pretrained.tokenizer if tokenizer is None else tokenizer
    values = make_config_json(
        pretrained.model,
        pretrained.head,
        frozenset(params),
        family=pretrained.family,
        labels=pretrained.labels,
        extra=pretrained.extra,
        kept={'examples': pretrained.examples, 'thresholds': pretrained.thresholds(), 'pairs': pretrained.pairs},
    )
    family = FAMILIES[values['model_type']]
    check_padding(family, pretrained.model, tokenizer)
    generation = pretrained.generation
    if family.is_language_model:
        values |= end_of_text_json(pretrained, tokenizer)
    elif family.decoder and tokenizer is not None:
        values = with_token_ids(values, trained_token_ids(pretrained, tokenizer))
        generation = generation or pretrained_generation_config(pretrained, tokenizer)
    listed = list_checkpoint_tensors(
        family, padded_config(pretrained.model), heads_of_pretrained(pretrained, frozenset(params))
    )
    is_bare = values['architectures'][0] == f'{family.stem}Model'
    codes = quantized_params(pretrained) if compresses else {}
    params = compressed_params(params, codes) if compresses else params
    tensors = export_tensors(family, listed, params, is_bare=is_bare)
    if compresses:
        tensors |= weight_scales(codes, family, listed, is_bare=is_bare)
        values[QUANTIZED] = quantization_config(codes, family, listed, is_bare=is_bare)
    tensors = with_duplicate_tensors(family.model_type, pretrained.model, tensors)
    note_phase(WRITING)
    with atomic_folder(folder) as partial:
        write_tensors(partial, tensors, is_stored=compresses)
        longest = pretrained.model.position_limit or pretrained.model.max_length
        types = pretrained.model.token_types > 1
        copy_tokenizer(
            tokenizer, partial, longest, has_types=types, written=trained_tokenizer_json(pretrained, tokenizer)
        )
        write_json(partial / CONFIG, values)
        if generation:
            write_json(partial / GENERATION, generation)
        write_export_checksums(partial)


def end_of_text_json(pretrained: Pretrained, tokenizer: Path | None) -> dict[str, Any]:
    """Returns the config.json keys of a language model's end-of-text id: the id between documents, or null.

    Without these keys, transformers would take GPT-2's id. Keys of an imported config.json are kept.
    """
    keys = ('bos_token_id', 'eos_token_id')
    if any(key in pretrained.extra for key in keys):
        return {}
    loaded = None if tokenizer is None else load_tokenizer(tokenizer, lowercase=pretrained.lowercase)
    return dict.fromkeys(keys, loaded and find_text_to_text_special_ids(loaded, str(tokenizer)).end)


def quantized_params(pretrained: Pretrained) -> Flat:
    """Returns a quantized model's parameters by path: int8 codes and scales for quantized layers, and float arrays for
    the others.
    """
    if pretrained.codes is not None:
        return flatten_by_path(pretrained.codes())
    return quantize_params(flatten_by_path(pretrained.params()), pretrained.model, pretrained.head)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a dict as an indented JSON file."""
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + '\n', encoding='utf-8')


def check_padding(family: HuggingFaceFamily, model: ModelConfig, tokenizer: Path | None) -> None:
    """Raises InputError if the tokenizer's padding id would make transformers count positions from another start than
    this model does.
    """
    if family.model_type not in SHIFTED or tokenizer is None or tokenizer.suffix != '.json':
        return
    pad = padding_id(tokenizer)
    if pad is not None and pad != model.position_offset - 1:
        raise InputError(
            f'model.position_offset is {model.position_offset}; {family.model_type} needs {pad + 1}, as the id of '
            f'padding in {tokenizer} is {pad}'
        )


def heads_of_pretrained(pretrained: Pretrained, names: frozenset[str]) -> CheckpointHeads:
    """Returns which prediction heads a model has, recognised by the names of its parameter groups."""
    if pretrained.head.kind != 'none':
        return CheckpointHeads(pretrained.head)
    return CheckpointHeads(
        has_masked_lm='masked_lm' in names,
        has_pooler='pooler' in names,
        has_pair='pair' in names,
        has_detector='detector' in names,
        has_decoder={'encoder', 'decoder'} <= names,
        is_decoder='decoder' in names and 'encoder' not in names,
    )
