"""Reads compact exports: model folders in this project's own format, for shrunk, pruned and quantized models.

`config.json` has the configs as they are. `model.safetensors` has the parameters by path, in the fewest equivalent
bytes (interop/int8_codes.py). transformers cannot read this format; `save_pretrained` writes one that it can.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from efficient_attention.config.dict_conversion import from_dict
from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import KINDS_IN_WORDS, InputError
from efficient_attention.interop.int8_codes import (
    SCALE,
    Flat,
    PackedSparseArrays,
    check_scales,
    dequantize_params,
    unflatten_paths,
    unpacked,
)
from efficient_attention.interop.safetensors_files import SafetensorsFolder
from efficient_attention.interop.tensor_conversion import CheckpointHeads, format_name_list, parameter_shapes
from efficient_attention.interop.tokenizer_files import tokenizer_file
from efficient_attention.interop.trained_model import Pretrained
from efficient_attention.models.sharding import path_name

MODEL_TYPE = 'efficient_attention'
VERSION = 1
# Keys of a compact export's config.json and the types of their values, without the configs of model and head.
DESCRIBED = {
    'labels': list,
    'problem': str,
    'family': str,
    'lowercase': bool,
    'extra': dict,
    'examples': dict,
    'thresholds': dict,
}
SHAPES = 'sparse_shapes'


def is_compact_folder(values: Mapping[str, Any]) -> bool:
    """Returns whether the values of a config.json belong to a compact export."""
    return values.get('model_type') == MODEL_TYPE


def read_compact_folder(path: Path, values: Mapping[str, Any]) -> Pretrained:
    """Returns the trained model stored in a compact export.

    Raises:
        InputError: its config.json is of another version or damaged. `params` and `codes` raise InputError if tensors
            do not fit.
    """
    where = f'{path / "config.json"}: '
    if values.get('version') != VERSION:
        raise InputError(f'{where}version is {values.get("version")!r}; this project reads {VERSION}')
    for name, kind in {**DESCRIBED, 'model': dict, 'head': dict, SHAPES: dict}.items():
        if type(values.get(name)) is not kind:
            raise InputError(f'{where}{name} is {values.get(name)!r}; it must be {KINDS_IN_WORDS[kind]}')
    for name, shape in values[SHAPES].items():
        if not (isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)):
            raise InputError(f'{where}{SHAPES} has {shape!r} for {name}; it must be a list of whole numbers from 0')
    try:
        model = from_dict(values['model'], ModelConfig, 'model.')
        head = from_dict(values['head'], HeadConfig, 'head.')
    except InputError as error:
        raise InputError(f'{where}{error}') from None
    return Pretrained(
        model=model,
        head=head,
        labels=tuple(values['labels']),
        problem=values['problem'],
        family=values['family'],
        tokenizer=tokenizer_file(path),
        lowercase=values['lowercase'],
        params=lambda: unflatten_paths(read_float_params(path, values[SHAPES], model, head)),
        extra=values['extra'],
        examples=values['examples'],
        thresholds=lambda: values['thresholds'],
        origin=lambda: str(path),
        codes=lambda: unflatten_paths(read_stored_params(path, values[SHAPES], model, head)),
    )


def read_stored_params(path: Path, shapes: Mapping[str, list[int]], model: ModelConfig, head: HeadConfig) -> Flat:
    """Returns the parameters in a compact export by path, with int8 codes as stored; raises InputError if they do not
    fit the configs.
    """
    folder = SafetensorsFolder(path)
    try:
        found = unpacked(
            PackedSparseArrays({name: folder.read_raw_tensor(name) for name in folder.shapes}, dict(shapes))
        )
        check_scales(found)
        check_shapes({name: array for name, array in found.items() if not name.endswith(SCALE)}, model, head)
    except InputError as error:
        raise InputError(f'{path}: {error}') from None
    return found


def read_float_params(path: Path, shapes: Mapping[str, list[int]], model: ModelConfig, head: HeadConfig) -> Flat:
    """Returns the parameters in a compact export by path, as float32; raises InputError if they do not fit the
    configs.
    """
    return dequantize_params(read_stored_params(path, shapes, model, head))


def heads_by_parameter_names(names: frozenset[str], head: HeadConfig) -> CheckpointHeads:
    """Returns which prediction heads an encoder model has, recognised by the names of its parameter groups."""
    if head.kind != 'none':
        return CheckpointHeads(head)
    return CheckpointHeads(
        has_masked_lm='masked_lm' in names,
        has_pooler='pooler' in names,
        has_pair='pair' in names,
        has_detector='detector' in names,
    )


def check_shapes(found: Flat, model: ModelConfig, head: HeadConfig) -> None:
    """Raises InputError if the parameters' names or shapes do not match the configs; the message names the
    parameters.
    """
    parts = heads_by_parameter_names(frozenset(path.split('/')[0] for path in found), head)
    leaves = jax.tree_util.tree_leaves_with_path(parameter_shapes(model, parts))
    needed = {path_name(path): tuple(leaf.shape) for path, leaf in leaves}
    faults = [f'{name} is missing' for name in needed if name not in found]
    faults += [f'{name} is unexpected' for name in found if name not in needed]
    both = [name for name in needed if name in found and found[name].shape != needed[name]]
    faults += [f'{name} has the shape {found[name].shape}, not {needed[name]}' for name in both]
    if faults:
        raise InputError(f'its tensors do not match its config.json: {format_name_list(faults)}')
