"""Detects from an encoder-decoder's tensors how its output layer works, and adds duplicate tensors that other programs
expect in exported files.

config.json does not say whether the output projection is the token table, nor whether the outputs have a bias.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.config_import import ModelDescription
from efficient_attention.interop.encoder_decoder_config_keys import SCALE, T5_KINDS, TIED
from efficient_attention.interop.huggingface_tensor_names import SINUSOIDS
from efficient_attention.interop.safetensors_files import SafetensorsFolder
from efficient_attention.interop.tensor_conversion import (
    tensor_names_by_plain_name,
    tied_copy_names,
    token_table_tensor_name,
)
from efficient_attention.modules.positions import sinusoid

HEAD, BIAS = 'lm_head.weight', 'final_logits_bias'


def with_output_layer_fields(path: Path, known: ModelDescription, values: dict[str, Any]) -> ModelDescription:
    """Returns the model description with the fields that describe the output layer, read from the checkpoint's tensors.

    Args:
        path: the folder.
        known: the description from its config.json.
        values: the keys of its config.json.

    Raises:
        InputError: the tensors cannot be read, or the output layer's tensors are missing.
    """
    if not known.family.output_fields:
        if values.get(TIED) is False:
            check_untied_table_exists(path, known)
        return known
    folder = SafetensorsFolder(path)
    found = tensor_names_by_plain_name(known.family, folder.shapes)
    if 'output_bias' in known.family.output_fields:
        has_bias = BIAS in found and bool(np.any(folder.read(found[BIAS])))
        return with_model_fields(known, output_bias=has_bias)
    if known.model.output_scale:
        return known  # If the output projection differs from the token table, `read_tensors` raises an error later.
    if HEAD not in found and (known.ending == 'Model' or not is_output_tied(values)):
        raise InputError(f'{path}: the head {HEAD} is missing; a model with unscaled outputs needs it')
    table = tied_copy_names(known.family)[HEAD]
    is_tied = HEAD not in found or (table in found and is_same_tensor(folder, found[HEAD], found[table]))
    return with_model_fields(known, tied_output=is_tied, dense_output_bias=is_tied)


def is_output_tied(values: Mapping[str, Any]) -> bool:
    """Returns whether a T5's config.json ties the output projection to the token embedding table.

    The question arises for a T5 file that has no head and leaves outputs unscaled.
    """
    # transformers 5 writes `tie_word_embeddings` for mT5, and never scales mT5's outputs.
    if values.get('model_type') == 'mt5':
        return values.get(TIED) is True
    return values.get(SCALE) is not None


def check_untied_table_exists(path: Path, known: ModelDescription) -> None:
    """Raises InputError if a checkpoint of an encoder with untied outputs has an output projection but no token
    embedding table.
    """
    table = token_table_tensor_name(known.family)
    found = tensor_names_by_plain_name(known.family, SafetensorsFolder(path).shapes).get(table)
    if found is not None and not found.endswith(table):
        raise InputError(f'{path}: {table} is missing; {TIED} is False, so {found} cannot stand for it')


def with_model_fields(known: ModelDescription, **fields: bool) -> ModelDescription:
    """Returns the model description with these fields of the model's config replaced."""
    changed: dict[str, Any] = dict(fields)
    return dataclasses.replace(known, model=dataclasses.replace(known.model, **changed))


def is_same_tensor(folder: SafetensorsFolder, first: str, second: str) -> bool:
    """Returns whether two tensors in a checkpoint folder have the same shape and the same numbers."""
    is_alike = folder.shapes[first] == folder.shapes[second]
    return is_alike and np.array_equal(folder.read(first), folder.read(second))


def with_duplicate_tensors(kind: str, model: ModelConfig, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the tensors of an export, with added duplicates that other programs expect in files of this family.

    A T5 with tied, unscaled outputs gets its token table a second time as the head. Versions before transformers 5
    freshly initialise the head if the file has none. Pegasus files contain their sinusoidal position tables.
    """
    if kind in T5_KINDS and model.tied_output and not model.output_scale:
        return tensors | {HEAD: tensors['shared.weight']}
    if kind == 'pegasus':
        table_LD = np.asarray(sinusoid(jnp.arange(model.max_length), model.width))
        return tensors | {f'model.{name}': table_LD for name in SINUSOIDS}
    return tensors
