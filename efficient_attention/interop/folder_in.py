"""Imports a Hugging Face folder: its config.json, and its tensors as this project's parameters."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from efficient_attention.errors import InputError
from efficient_attention.interop.codes import as_flat, as_tree, coded
from efficient_attention.interop.compressed_tensors import check_readable, is_compressed, kernels_of, read_codes
from efficient_attention.interop.config_in import CONFIG, Description, describe
from efficient_attention.interop.factors import factored
from efficient_attention.interop.generation_config import generation_values
from efficient_attention.interop.output_layers import with_output
from efficient_attention.interop.parameters import (
    Parts,
    has_all,
    parameter_shapes,
    plain_names,
    read_tensors,
    tensors_of,
)
from efficient_attention.interop.safetensors_files import TensorFolder, check_tensor_files
from efficient_attention.interop.tokenizer_files import is_lowercase, tokenizer_file
from efficient_attention.interop.trained_model import Pretrained
from efficient_attention.interop.uneven_layers import even, unpadded


def read_folder(path: Path, values: dict[str, Any]) -> Pretrained:
    """Returns the trained model in a Hugging Face folder.

    Args:
        path: the folder.
        values: the keys of its config.json.

    Raises:
        InputError: config.json has an unsupported setting, or there are no safetensors. `params` raises InputError if
            tensors are missing, unexpected or of another shape.
    """
    try:
        known = describe(values)
        check_readable(values, known.model)
    except InputError as error:
        raise InputError(f'{path / CONFIG}: {error}') from None
    check_tensor_files(path)
    known = with_output(path, known, values)
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
        generation=generation_values(path) if known.family.decoder else {},
        examples=known.examples,
        pairs=known.pairs,
        thresholds=lambda: known.thresholds,
        origin=lambda: str(path),
        codes=(lambda: _read_compressed(path, known)) if is_compressed(values) else None,
    )


def _read_params(path: Path, known: Description) -> dict[str, Any]:
    folder = TensorFolder(path)
    parts = parts_in(known, plain_names(known.family, folder.shapes))
    params = read_tensors(known.family, tensors_of(known.family, even(known.model), parts), folder)
    try:
        found = unpadded(known.model, params)
        return factored(found, parameter_shapes(known.model, parts)) if known.model.ranks else found
    except InputError as error:
        raise InputError(f'{path}: {error}') from None


def _read_compressed(path: Path, known: Description) -> dict[Any, Any]:
    """Returns the parameters with int8 codes for the kernels that the folder stores as codes."""
    folder = TensorFolder(path)
    flat = coded(as_flat(_read_params(path, known)), known.model, known.head)
    parts = parts_in(known, plain_names(known.family, folder.shapes))
    tensors = tensors_of(known.family, known.model, parts)
    return as_tree(read_codes(flat, kernels_of(known.model, known.head), tensors, folder, known.family))


def parts_in(known: Description, found: Mapping[str, str]) -> Parts:
    """Returns the parts besides the encoder: those that the architecture requires, and pretraining heads found."""
    family, ending = known.family, known.ending
    if family.decoder:
        return Parts(has_decoder=True)
    if known.head.kind != 'none':
        return Parts(known.head)
    if family.detector and ending == 'ForPreTraining':
        return Parts(has_detector=True)
    is_both = ending == 'ForPreTraining' and bool(family.pair)
    has_pair = bool(family.pair) and (
        is_both or ending == 'ForNextSentencePrediction' or has_all(family, {'pair': family.pair}, found)
    )
    return Parts(
        has_masked_lm=is_both or ending == 'ForMaskedLM' or has_all(family, family.masked_lm, found),
        has_pooler=bool(family.pooler) and (has_pair or has_all(family, {'pooler': family.pooler}, found)),
        has_pair=has_pair,
    )
