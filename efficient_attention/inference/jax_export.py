"""Exports a trained model as a program that runs with JAX only, without this package.

The program takes any batch size and a fixed row length. It is lowered for CPUs, NVIDIA GPUs and TPUs. The tests run it
on CPUs, with each attention mechanism; no program was run on a GPU or TPU yet. It is traced for one row and mapped over
the rows of a batch, so no choice in the model depends on the batch size. Parameters are stored next to the program,
because compilers are slow with large constants.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, export

from efficient_attention.atomic_files import atomic_folder
from efficient_attention.attention.devices import using_platform
from efficient_attention.data.preparation.cache_folder import TOKENIZER
from efficient_attention.errors import InputError
from efficient_attention.inference.pretrained_models import (
    EncoderWrapper,
    pretrained_decoder,
    pretrained_module,
    row_length,
)
from efficient_attention.inference.restore import restore_for_inference
from efficient_attention.interop.config_json_keys import LANGUAGE_MODELLING, TEXT_TO_TEXT
from efficient_attention.interop.pretrained import Pretrained, open_pretrained
from efficient_attention.interop.safetensors_files import SINGLE, write_tensors
from efficient_attention.interop.tokenizer_files import copy_tokenizer
from efficient_attention.interop.workdir_import import describe_checkpoint, is_decoder_run
from efficient_attention.models.decoder import Decoder
from efficient_attention.models.encoder_decoder import EncoderDecoder
from efficient_attention.models.fine_tuning import OF_SEVERAL, FineTuningModel
from efficient_attention.models.pretraining import PretrainingModel
from efficient_attention.workdir.config_file import read_config

PLATFORMS = ('cpu', 'cuda', 'tpu')
PROGRAM = 'model.jax'
DESCRIPTION = 'export.json'
MEANINGS = {
    'tokens': 'token ids; any id at padding',
    'segments': '1 for tokens, 0 for padding; 1, 2, ... for several texts in one row',
    'token_types': '0 for the first text, 1 for the second',
    'is_global': '1 for tokens with global attention, else 0',
    'source': 'token ids of the source; any id at padding',
    'source_segments': '1 for tokens, 0 for padding',
    'targets': 'token ids of the target, with the start symbol first',
    'target_segments': '1 for tokens, 0 for padding',
}
RUN_JAX = """import jax.export
from safetensors.numpy import load_file

with open('{program}', 'rb') as file:
    program = jax.export.deserialize(bytearray(file.read()))
outputs = program.call(load_file('{params}'), {inputs})
"""


@dataclasses.dataclass(frozen=True)
class ExportableModel:
    """A trained model as a function from the arrays of a batch to named outputs.

    Attributes:
        params: parameters by path, such as 'encoder/norm/scale'.
        call: function of the parameters and of one array [B, L] per input; returns {output name: array}.
        lengths: the row length L of each input, in tokens; the keys are the names of the inputs, in order.
        tokenizers: the tokenizer's file; for targets with another tokenizer, also their tokenizer's file.
        labels: names of the classes, in the order of the logits.
        origin: where the parameters come from.
    """

    params: dict[str, Array]
    call: Callable[..., dict[str, Array]]
    lengths: dict[str, int]
    tokenizers: tuple[Path, ...]
    labels: tuple[str, ...]
    origin: str

    def outputs(self, params: dict[str, Array], *inputs: Array) -> dict[str, Array]:
        """Returns the outputs of a batch of any size: the outputs of one row, mapped over the rows."""

        def row_outputs(*row: Array) -> dict[str, Array]:
            return jax.tree.map(lambda x: x[0], self.call(params, *(x[None] for x in row)))

        # The attention must not choose a backend that exists on this machine's devices only.
        with using_platform('cpu', 1):
            return jax.vmap(row_outputs)(*inputs)


def open_exportable(path: Path, checkpoint: str = '', length: int | None = None) -> ExportableModel:
    """Returns the model in a workdir, a folder of `convert --small` or a Hugging Face folder as an exportable model.

    Args:
        path: the folder.
        checkpoint: a workdir's checkpoint, as in `open_pretrained`.
        length: tokens per row; None = the model's position limit, else its training length, else 512.

    Raises:
        InputError: the folder or checkpoint cannot be read, the length is above the position limit, or the model reads
            several rows per example, as in multiple choice.
    """
    if is_decoder_run(path):
        return exportable_decoder(path, checkpoint, length)
    pretrained = open_pretrained(path, checkpoint)
    if pretrained.problem == LANGUAGE_MODELLING:
        return exportable_imported_decoder(pretrained, length)
    rows = checked_length(length, row_length(pretrained), pretrained.model.position_limit)
    if pretrained.problem == TEXT_TO_TEXT:
        return exportable_encoder_decoder(pretrained, rows)
    return exportable_encoder(path, pretrained, rows)


def checked_length(length: int | None, default: int, limit: int | None) -> int:
    """Returns the row length to export, in tokens; raises InputError if it is below 1 or above the position limit."""
    if length is not None and (length < 1 or (limit is not None and length > limit)):
        most = '' if limit is None else f' to {limit}, the positions of the model'
        raise InputError(f'--length is {length}; it must be from 1{most}')
    return length or default


def exportable_decoder(path: Path, checkpoint: str, length: int | None) -> ExportableModel:
    """Returns a language model's logits of each next token as an exportable function."""
    config = read_config(path)
    rows = checked_length(length, config.model.position_limit or config.data.length, config.model.position_limit)
    graph, params = restore_for_inference(path, config, checkpoint, lambda: Decoder(config.model, rngs=nnx.Rngs(0)))

    file = path / TOKENIZER
    tokenizers = (file,) if file.is_file() else ()
    origin = f'{path} {describe_checkpoint(path, config, checkpoint)}'
    inputs = {'tokens': rows, 'segments': rows}
    return make_exportable(graph, params, next_token_logits, inputs, (tokenizers, (), origin))


def exportable_imported_decoder(pretrained: Pretrained, length: int | None) -> ExportableModel:
    """Returns the logits of each next token, computed by the language model of a Hugging Face folder."""
    rows = checked_length(length, row_length(pretrained), pretrained.model.position_limit)
    graph, state = nnx.split(pretrained_decoder(pretrained))
    inputs = {'tokens': rows, 'segments': rows}
    return make_exportable(graph, nnx.to_pure_dict(state), next_token_logits, inputs, facts_of(pretrained))


def next_token_logits(model: Decoder, tokens_BL: Array, segments_BL: Array) -> dict[str, Array]:
    """Returns a decoder's logits [B, L, V] of each next token."""
    return {'logits': model(tokens_BL, segments_BL)}


def exportable_encoder_decoder(pretrained: Pretrained, length: int) -> ExportableModel:
    """Returns an encoder-decoder's logits of each next target token as an exportable function."""
    module = pretrained_module(lambda rngs: EncoderDecoder(pretrained.model, rngs=rngs), pretrained)
    target = min(length, pretrained.run.pairs.target_length) if pretrained.run else length

    def call(model: EncoderDecoder, *inputs: Array) -> dict[str, Array]:
        return {'logits': model(*inputs)}

    lengths = {'source': length, 'source_segments': length, 'targets': target, 'target_segments': target}
    graph, state = nnx.split(module)
    return make_exportable(graph, nnx.to_pure_dict(state), call, lengths, facts_of(pretrained))


def exportable_encoder(path: Path, pretrained: Pretrained, length: int) -> ExportableModel:
    """Returns an encoder with its head as an exportable function.

    The outputs are those of a fine-tuned head. Without such a head, they are the logits of a masked language model, or
    the final hidden states.
    """
    config, head = pretrained.model, pretrained.head
    if head.kind in OF_SEVERAL or head.sentence_layers:
        raise InputError(
            f'{path}: this model reads several rows per example (as in multiple choice); such models cannot be exported'
        )
    names = ['tokens', 'segments']
    names += ['token_types'] if config.token_types > 1 else []
    names += ['is_global'] if config.global_tokens > 0 else []
    make: Callable[[nnx.Rngs], Any]
    read: Callable[[Any, dict[str, Array]], dict[str, Array]]
    if head.kind != 'none':
        make, read = lambda rngs: FineTuningModel(config, head, rngs=rngs), fine_tuned_outputs
    elif pretrained.problem == 'fill_mask':
        make, read = lambda rngs: PretrainingModel(config, has_pairs=False, rngs=rngs), masked_lm_outputs
    else:
        make, read = lambda rngs: EncoderWrapper(config, rngs=rngs), hidden_states

    def call(model: Any, *inputs: Array) -> dict[str, Array]:
        batch = dict(zip(names, inputs, strict=True))
        if 'is_global' in batch:
            batch['is_global'] = batch['is_global'] > 0
        return read(model, batch)

    graph, state = nnx.split(pretrained_module(make, pretrained))
    lengths = dict.fromkeys(names, length)
    return make_exportable(graph, nnx.to_pure_dict(state), call, lengths, facts_of(pretrained))


def fine_tuned_outputs(model: FineTuningModel, batch: dict[str, Array]) -> dict[str, Array]:
    """Returns the outputs of a fine-tuned model by name, such as its logits."""
    return model.outputs(batch)


def masked_lm_outputs(model: PretrainingModel, batch: dict[str, Array]) -> dict[str, Array]:
    """Returns the logits [B, L, V] of a masked language model for every token of a batch."""
    hidden_BLD = hidden_states(model, batch)['hidden']
    return {'logits': model.masked_lm(hidden_BLD, model.encoder.embeddings.token)}


def hidden_states(model: Any, batch: dict[str, Array]) -> dict[str, Array]:
    """Returns the final hidden states [B, L, D] of a model's encoder."""
    options = {'token_types_BL': batch.get('token_types'), 'is_global_BL': batch.get('is_global')}
    return {'hidden': model.encoder(batch['tokens'], batch['segments'], **options)}


def facts_of(pretrained: Pretrained) -> tuple[tuple[Path, ...], tuple[str, ...], str]:
    """Returns a model's tokenizer files, its labels, and where its parameters come from."""
    files = pretrained.tokenizer, pretrained.target_tokenizer
    return tuple(file for file in files if file is not None), tuple(pretrained.labels), pretrained.origin()


def make_exportable(
    graph: nnx.GraphDef,
    params: Any,
    call: Callable[..., dict[str, Array]],
    lengths: dict[str, int],
    facts: tuple[tuple[Path, ...], tuple[str, ...], str],
) -> ExportableModel:
    """Returns an exportable model whose parameters are a flat dict.

    Args:
        graph: the `nnx.GraphDef` of the model.
        params: its parameters as nested dicts.
        call: function of the model and of the arrays of a batch; returns {output name: array}.
        lengths: the row length of each input.
        facts: the result of `facts_of`.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path(params)
    flat = {jax.tree_util.keystr(path, simple=True, separator='/'): leaf for path, leaf in paths}
    names = list(flat)

    def call_flat(flat: dict[str, Array], *inputs: Array) -> dict[str, Array]:
        model = nnx.merge(graph, jax.tree.unflatten(tree, [flat[name] for name in names]))
        return call(model, *inputs)

    return ExportableModel(flat, call_flat, lengths, *facts)


def serialize_program(model: ExportableModel) -> tuple[bytes, dict[str, str]]:
    """Returns a model's program as serialized bytes for `jax.export.deserialize`, and the shape of each output."""
    (batch,) = export.symbolic_shape('batch')
    inputs = [jax.ShapeDtypeStruct((batch, length), jnp.int32) for length in model.lengths.values()]
    params = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in model.params.items()}
    program = export.export(jax.jit(model.outputs), platforms=PLATFORMS)(params, *inputs)
    outputs = jax.tree.unflatten(program.out_tree, program.out_avals)
    return bytes(program.serialize()), {name: shape_text(aval) for name, aval in outputs.items()}


def shape_text(array: Any) -> str:
    """Returns the dtype and shape of an array as text, such as 'float32 [batch, 2]'."""
    return f'{array.dtype} [{", ".join(map(str, array.shape))}]'


def export_jax(model: ExportableModel, folder: Path) -> None:
    """Writes a model as a folder: its program, its parameters, its tokenizer, export.json and README.md.

    The folder appears only once everything is written.

    Raises:
        InputError: the folder is not empty.
        RunError: the disk is full.
    """
    program, outputs = serialize_program(model)
    with atomic_folder(folder) as partial:
        (partial / PROGRAM).write_bytes(program)
        write_tensors(partial, {name: np.asarray(x) for name, x in model.params.items()}, is_stored=True)
        code = RUN_JAX.format(program=PROGRAM, params=SINGLE, inputs=', '.join(model.lengths))
        facts = {'program': PROGRAM, 'parameters': SINGLE, 'platforms': PLATFORMS, 'jax': jax.__version__}
        write_description(partial, model, facts, outputs, code)


def write_description(
    folder: Path, model: ExportableModel, facts: dict[str, Any], outputs: dict[str, str], code: str
) -> None:
    """Writes the tokenizer files, export.json and README.md of an exported model.

    Args:
        folder: the folder.
        model: the exported model.
        facts: the first fields of export.json.
        outputs: dtype and shape of each output.
        code: Python code that runs the program.
    """
    for number, file in enumerate(model.tokenizers):
        into = folder / 'target_tokenizer' if number else folder
        into.mkdir(exist_ok=True)
        copy_tokenizer(file, into, max(model.lengths.values()))
    inputs = {
        name: {'dtype': 'int32', 'shape': ['batch', length], 'meaning': MEANINGS[name]}
        for name, length in model.lengths.items()
    }
    written = {str(path.relative_to(folder)) for path in folder.rglob('*') if path.is_file()}
    files = sorted(written - {SINGLE, *map(str, facts.values())})
    content = {**facts, 'origin': model.origin, 'inputs': inputs, 'outputs': outputs}
    content |= {'labels': model.labels, 'tokenizer_files': files}
    (folder / DESCRIPTION).write_text(json.dumps(content, indent=2, ensure_ascii=False) + '\n', encoding='utf-8')
    (folder / 'README.md').write_text(readme_text(content, code), encoding='utf-8')


def readme_text(content: dict[str, Any], code: str) -> str:
    """Returns the README of an exported model: how to run it, its inputs and outputs, and its tokenizer files."""
    lines = ['# Exported model', '', f'From {content["origin"]}. The batch size may vary, the row length is fixed.', '']
    lines += ['```python', code.strip(), '```', '', '| input | dtype and shape | meaning |', '|---|---|---|']
    for name, one in content['inputs'].items():
        lines.append(f'| {name} | {one["dtype"]} [batch, {one["shape"][1]}] | {one["meaning"]} |')
    lines += ['', '| output | dtype and shape |', '|---|---|']
    lines += [f'| {name} | {text} |' for name, text in content['outputs'].items()]
    if content['labels']:
        lines += ['', f'Classes in the order of the logits: {", ".join(content["labels"])}.']
    files = content['tokenizer_files']
    lines += ['', f'Tokenizer files: {", ".join(files)}.' if files else 'The folder has no tokenizer.', '']
    return '\n'.join(lines)
