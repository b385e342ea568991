"""Converts between the tensors of a checkpoint file and this project's parameters, and checks names and shapes in both
directions.
"""

import dataclasses
import fnmatch
import functools
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict

from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.interop.huggingface_tensor_names import HuggingFaceFamily, Names
from efficient_attention.interop.safetensors_files import SafetensorsFolder
from efficient_attention.models.bidirectional_lm import TwoWayLanguageModel
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.encoder import Encoder
from efficient_attention.models.encoder_decoder import EncoderDecoder
from efficient_attention.models.fine_tuning import FineTuningModel
from efficient_attention.models.pretraining import MaskedLMHead, PairHead
from efficient_attention.modules.layer_constructors import linear
from efficient_attention.modules.pooling import Pooler

LEAVES = {'kernel': 'weight', 'embedding': 'weight', 'scale': 'weight', 'table': 'weight', 'bias': 'bias'}
# the oldest released files use these names for normalisation parameters
OLD_LEAVES = {'gamma': 'weight', 'beta': 'bias'}
LAYERS = ('encoder/stack/layers/', 'decoder/stack/layers/')
# path of the output bias in an encoder-decoder; its tensor has shape [1, n] and a name without '.bias'
OUTPUT_BIAS = 'decoder/head/bias'
# Released files also contain tensors that no parameter uses: recomputed buffers, and poolers that no model uses.
HARMLESS = ('*.position_ids', '*.token_type_ids', 'position_ids', 'pooler.*', '*.pooler.*')
MOST_NAMED = 12  # maximum number of tensor names in an error message
Flat = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class ParameterTensors:
    """One parameter of this project, and the tensors of a checkpoint file that make up this parameter: one tensor per
    layer, or a single tensor.
    """

    path: str
    # tensor names without the prefix; a '.' in front means that the tensor belongs to the base model
    names: tuple[str, ...]
    shape: tuple[int, ...]  # shape of each tensor in `names`
    is_stacked: bool
    is_transposed: bool
    is_row: bool = False  # True if the tensor is stored with shape [1, n]
    # The parameter is block number `block` of `blocks` equal blocks along the last axis of each tensor.
    block: int = 0
    blocks: int = 1


@dataclasses.dataclass(frozen=True)
class CheckpointHeads:
    """Which prediction heads a checkpoint has, and whether its encoder is a part of a larger model."""

    head: HeadConfig = HeadConfig()
    has_masked_lm: bool = False
    # True if the model has the pooler of pretraining; the pooler of a classification head counts as a part of that head
    has_pooler: bool = False
    has_pair: bool = False
    has_detector: bool = False
    has_two_ways: bool = False  # True if the encoder is part of a bidirectional language model
    has_decoder: bool = False  # True if the encoder is part of an encoder-decoder
    is_decoder: bool = False  # True if the model is only a decoder, and has no encoder


def list_checkpoint_tensors(
    family: HuggingFaceFamily, model: ModelConfig, parts: CheckpointHeads
) -> list[ParameterTensors]:
    """Returns all parameters of a model, each with the names and shapes of its tensors in a Hugging Face checkpoint.

    Raises:
        InputError: the family has no name for a parameter of the model; the message names the parameter.
    """
    names = huggingface_module_names(family, parts) | dict(family.gated if model.feed_forward_gate else {})
    tensors = []
    for path, leaf in flatten_dict(parameter_shapes(model, parts), sep='/').items():
        module, _, kind = path.rpartition('/')
        if module not in names:
            raise InputError(f'{family.model_type} checkpoints have no place for {path}')
        name = names[module] if path == OUTPUT_BIAS else f'{names[module]}.{LEAVES[kind]}'
        tensor = _parameter_tensors(path, name, leaf.shape, model, is_input_first=family.is_input_first)
        if names[module] in family.fused:
            tensor = _as_block(tensor, module, [own for own, shared in names.items() if shared == names[module]])
        tensors.append(tensor)
    return tensors


def huggingface_module_names(family: HuggingFaceFamily, parts: CheckpointHeads) -> dict[str, str]:
    """Returns {module path: Hugging Face name} for each module that a model with these prediction heads may have."""
    if parts.has_decoder or parts.is_decoder:
        return dict(family.encoder) | dict(family.decoder)
    kind = parts.head.kind
    heads: dict[str, Names] = {
        'sequence': family.sequence.names,
        'choice': family.choice.names,
        'token': family.token,
        'span': family.span,
        'multi_hop': {**family.span, 'head/type': 'head.type', 'head/support': 'head.support'},
    }
    names = dict(family.encoder) | dict(heads.get(kind, {})) | dict(family.detector)
    if parts.has_pooler:
        names['pooler/dense'] = family.pooler
    if parts.has_pair:
        names['pair/dense'] = family.pair
    return names | dict(family.masked_lm)


@functools.lru_cache(maxsize=8)
def parameter_shapes(model: ModelConfig, parts: CheckpointHeads) -> dict[str, Any]:
    """Returns the shapes of a model's parameters as nested dicts, without creating the parameters."""

    def make() -> dict[str, Any]:
        rngs = nnx.Rngs(0)
        if parts.has_decoder:
            return nnx.to_pure_dict(nnx.state(EncoderDecoder(model, rngs=rngs)))
        if parts.is_decoder:
            return {'decoder': nnx.to_pure_dict(nnx.state(Decoder(model, rngs=rngs)))}
        if parts.has_two_ways:
            return nnx.to_pure_dict(nnx.state(TwoWayLanguageModel(model, rngs=rngs)))
        if parts.head.kind != 'none':
            return nnx.to_pure_dict(nnx.state(FineTuningModel(model, parts.head, rngs=rngs)))
        modules: dict[str, Any] = {'encoder': Encoder(model, rngs=rngs)}
        if parts.has_masked_lm:
            modules['masked_lm'] = MaskedLMHead(model, rngs=rngs)
        if parts.has_pooler:
            modules['pooler'] = Pooler(model, rngs=rngs)
        if parts.has_pair:
            modules['pair'] = PairHead(model, rngs=rngs)
        states = {name: nnx.to_pure_dict(nnx.state(module)) for name, module in modules.items()}
        if parts.has_detector:
            layers = {
                'dense': linear(model, model.width, model.width, rngs),
                'out': linear(model, model.width, 1, rngs),
            }
            states['detector'] = {name: nnx.to_pure_dict(nnx.state(layer)) for name, layer in layers.items()}
        return states

    return jax.eval_shape(make)


def _parameter_tensors(
    path: str, name: str, shape: tuple[int, ...], model: ModelConfig, *, is_input_first: bool
) -> ParameterTensors:
    is_layer = path.startswith(LAYERS)
    is_stacked = is_layer and model.is_stacked
    inner = model.inner_layers if model.sharing == 'all' else 1
    count = shape[0] if is_stacked else 1
    names = [name]
    if is_layer:
        has_groups = '{group}' in name
        numbers = [(i // inner, i % inner) if has_groups else (0, i) for i in range(count)]
        names = [name.format(group=group, layer=layer) for group, layer in numbers]
    shape = shape[1:] if is_stacked else shape
    if path == OUTPUT_BIAS:
        return ParameterTensors(path, tuple(names), (1, *shape), is_stacked, is_transposed=False, is_row=True)
    is_transposed = path.endswith('/kernel') and not is_input_first
    return ParameterTensors(path, tuple(names), shape[::-1] if is_transposed else shape, is_stacked, is_transposed)


def _as_block(tensor: ParameterTensors, module: str, modules: list[str]) -> ParameterTensors:
    """Returns a parameter as one block of a tensor that holds the outputs of these modules side by side."""
    *before, width = tensor.shape
    whole = (*before, width * len(modules))
    return dataclasses.replace(tensor, shape=whole, block=modules.index(module), blocks=len(modules))


def read_tensors(
    family: HuggingFaceFamily, tensors: Iterable[ParameterTensors], folder: SafetensorsFolder
) -> dict[str, Any]:
    """Loads the tensors of a checkpoint folder as this project's parameters: nested dicts of float32 arrays.

    Raises:
        InputError: a tensor is missing, unexpected or of another shape; the message lists them all.
    """
    tensors = list(tensors)
    found = tensor_names_by_plain_name(family, folder.shapes)
    faults = tensor_mismatches(family, tensors, found, folder)
    lines = [f'{kind}: {format_name_list(names)}' for kind, names in faults.items() if names]
    if lines:
        raise InputError(f'{folder.folder}: its tensors do not match its config.json; {"; ".join(lines)}')
    arrays = {}
    for tensor in tensors:
        rows = [folder.read(found[name.lstrip('.')]) for name in tensor.names]
        rows = [row.T if tensor.is_transposed else row[0] if tensor.is_row else row for row in rows]
        if tensor.blocks > 1:
            rows = [np.split(row, tensor.blocks, axis=-1)[tensor.block] for row in rows]
        arrays[tensor.path] = np.stack(rows) if tensor.is_stacked else rows[0]
    return unflatten_dict(arrays, sep='/')


def tensor_mismatches(
    family: HuggingFaceFamily, tensors: list[ParameterTensors], found: Mapping[str, str], folder: SafetensorsFolder
) -> dict[str, list[str]]:
    """Returns the names of a checkpoint's tensors that are missing, have another shape than the model's, or are
    unexpected.
    """
    wanted = {name.lstrip('.'): tensor.shape for tensor in tensors for name in tensor.names}
    shapes = {name: folder.shapes[tensor] for name, tensor in found.items()}
    others = [name for name, shape in wanted.items() if name in found and shapes[name] != shape]
    left = {name for name in found if name not in wanted and not is_ignorable_tensor(name, family.harmless)}
    left -= find_equal_tied_copies(family, left, found, folder)
    return {
        'missing': [name for name in wanted if name not in found],
        'of another shape': [f'{found[name]} {shapes[name]}, not {wanted[name]}' for name in others],
        'unexpected': sorted(found[name] for name in left),
    }


def export_tensors(
    family: HuggingFaceFamily, tensors: Iterable[ParameterTensors], params: Mapping[str, Any], *, is_bare: bool
) -> Flat:
    """Returns the tensors of an export by their names in the file. With `is_bare`, the file holds a base model, whose
    tensor names have no prefix.

    Raises:
        InputError: parameters are missing, of another shape, or have no name in the file; the message lists them.
    """
    arrays, written = flatten_dict(params, sep='/'), dict[str, dict[int, np.ndarray]]()
    faults = []
    for tensor in tensors:
        array = arrays.pop(tensor.path, None)
        whole = tensor.shape[::-1] if tensor.is_transposed else tensor.shape[tensor.is_row :]
        whole = (*whole[:-1], whole[-1] // tensor.blocks)
        whole = (len(tensor.names), *whole) if tensor.is_stacked else whole
        if array is None or array.shape != whole:
            faults.append(f'{tensor.path} is {"missing" if array is None else f"{array.shape}, not {whole}"}')
            continue
        for name, row in zip(tensor.names, array if tensor.is_stacked else [array], strict=True):
            row = row.T if tensor.is_transposed else row[None] if tensor.is_row else row
            written.setdefault(exported_tensor_name(family, name, is_bare=is_bare), {})[tensor.block] = row
    faults += [f'{path} has no name in a {family.model_type} checkpoint' for path in arrays]
    if faults:
        raise InputError(f'the parameters do not fit: {format_name_list(faults)}')
    return {
        name: blocks[0] if len(blocks) == 1 else np.concatenate([blocks[number] for number in sorted(blocks)], axis=-1)
        for name, blocks in written.items()
    }


def exported_tensor_name(family: HuggingFaceFamily, name: str, *, is_bare: bool) -> str:
    """Returns the name of a tensor in an exported file, from its name without prefix."""
    if not name.startswith('.'):
        return name
    return name.lstrip('.') if is_bare else f'{family.prefix}{name}'


def tensor_names_by_plain_name(family: HuggingFaceFamily, names: Iterable[str]) -> dict[str, str]:
    """Returns {name without prefix: name in the file} for the tensors of a checkpoint file; outdated names are replaced
    by current ones.
    """
    plain: dict[str, str] = {}
    for name in names:
        short = name.removeprefix(f'{family.prefix}.')
        stem, _, leaf = short.rpartition('.')
        short = f'{stem}.{OLD_LEAVES.get(leaf, leaf)}' if stem else short
        if short in plain:
            raise InputError(f'{name} and {plain[short]} are the same tensor under two names')
        plain[short] = name
    # A file may store a shared tensor under any one of its names.
    for copy, original in tied_copy_names(family).items():
        if copy in plain and original not in plain:
            plain[original] = plain.pop(copy)
    return plain


def is_ignorable_tensor(name: str, more: tuple[str, ...] = ()) -> bool:
    """Returns whether a checkpoint file may contain this tensor although no parameter uses it; `more` are further name
    patterns of the family.
    """
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in (*HARMLESS, *more))


def find_equal_tied_copies(
    family: HuggingFaceFamily, left: set[str], found: Mapping[str, str], folder: SafetensorsFolder
) -> set[str]:
    """Returns the tensors in `left` that only repeat the token embedding table or the output bias, so that no parameter
    needs them.

    Raises:
        InputError: a copy differs from its original.
    """
    tied = set()
    for copy, original in tied_copy_names(family).items():
        if copy in left and original in found:
            tied.add(copy)
            if not np.array_equal(folder.read(found[copy]), folder.read(found[original])):
                raise InputError(f'{folder.folder}: {found[copy]} differs from {found[original]}: untied outputs')
    return tied


def tied_copy_names(family: HuggingFaceFamily) -> dict[str, str]:
    """Returns {name of a copy: name of its original} for the tensors that a checkpoint file may contain twice."""
    table = token_table_tensor_name(family)
    if family.decoder:
        return dict.fromkeys(family.copies, table)
    stem = family.masked_lm['masked_lm']
    return {f'{stem}.decoder.weight': table, f'{stem}.weight': table, f'{stem}.decoder.bias': f'{stem}.bias'}


def token_table_tensor_name(family: HuggingFaceFamily) -> str:
    """Returns the tensor name of the token embedding table, without the prefix of the base model."""
    names = {**family.encoder, **family.decoder}
    return (names.get('decoder/embeddings/token') or names['encoder/embeddings/token']).lstrip('.') + '.weight'


def has_head_weights(family: HuggingFaceFamily, names: Names, found: Mapping[str, str]) -> bool:
    """Returns whether a checkpoint file has the weight of every module in `names`. A head with these modules can then
    be loaded.
    """
    stem = family.masked_lm.get('masked_lm')
    modules = [name.lstrip('.') for name in names.values() if name and name != stem]
    return bool(modules) and all(f'{name}.weight' in found for name in modules)


def format_name_list(names: list[str]) -> str:
    """Returns the names joined with commas; after the first `MOST_NAMED` names, the text only says how many more there
    are.
    """
    more = f' and {len(names) - MOST_NAMED} more' if len(names) > MOST_NAMED else ''
    return ', '.join(names[:MOST_NAMED]) + more
