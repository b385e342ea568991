"""Tests exported JAX programs: they run without this package, at any batch size, and equal the model."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from jax import export
from safetensors.numpy import load_file, save_file

from efficient_attention.attention.registry import NAMES
from efficient_attention.config.head import HeadConfig
from efficient_attention.config.model import ModelConfig
from efficient_attention.errors import InputError
from efficient_attention.inference.jax_export import (
    export_jax,
    exportable_encoder,
    exportable_encoder_decoder,
    open_exportable,
)
from efficient_attention.inference.pipeline import pipeline
from efficient_attention.interop.pretrained import Pretrained
from efficient_attention.models.encoder_decoder import EncoderDecoder
from efficient_attention.models.fine_tuning import FineTuningModel
from tests.inference.test_generate import workdir_of
from tests.inference.tiny_checkpoint import random_params, random_text, write_checkpoint
from tests.interop.folders import TEXT_TO_TEXT
from tests.tolerances import assert_close

WITHIN = 1e-5
# A reader of the export, in a process where importing this package or Flax fails.
READER = """
import sys
sys.modules['efficient_attention'] = sys.modules['flax'] = None
import jax.export
from safetensors.numpy import load_file, save_file

with open('model.jax', 'rb') as file:
    program = jax.export.deserialize(bytearray(file.read()))
inputs = load_file(sys.argv[1])
outputs = program.call(load_file('model.safetensors'), *(inputs[name] for name in sys.argv[2:]))
save_file({name: jax.numpy.asarray(x).__array__() for name, x in outputs.items()}, 'outputs.safetensors')
"""


def run_program(folder: Path, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the outputs of an exported program, called in this process."""
    program = export.deserialize(bytearray((folder / 'model.jax').read_bytes()))
    outputs = program.call(load_file(folder / 'model.safetensors'), *inputs.values())
    return {name: np.asarray(x) for name, x in outputs.items()}


def rows_of(batch: int, length: int, vocabulary: int, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Returns random token ids, and segments with padding."""
    draws = np.random.default_rng(batch)
    used = draws.integers(1, length, (batch, 1), endpoint=True)
    arrays = {
        'tokens': draws.integers(0, vocabulary, (batch, length)),
        'segments': np.arange(length)[None] < used,
        'token_types': draws.integers(0, 2, (batch, length)),
        'is_global': np.arange(length)[None] < np.minimum(used, 2),
    }
    return {name: arrays[name].astype(np.int32) for name in names}


def test_a_classifier_runs_without_this_package(tmp_path: Path):
    source = write_checkpoint(tmp_path, 'classification')
    folder = tmp_path / 'exported'
    export_jax(open_exportable(source, length=24), folder)
    described = json.loads((folder / 'export.json').read_text())
    assert described['inputs'].keys() == {'tokens', 'segments', 'token_types'}
    assert described['outputs'] == {'logits': 'float32 [batch, 3]'} and described['labels'] == ['bad', 'fair', 'good']
    assert set(described['tokenizer_files']) == {'vocab.txt', 'tokenizer_config.json'} & {
        p.name for p in folder.iterdir()
    }
    assert described['platforms'] == ['cpu', 'cuda', 'tpu']
    predict, text = pipeline('text-classification', source), random_text(9)
    [feature] = predict.encode_rows(task := predict.make_task(predict.examples), [task.example_from_python(text)])
    count = len(feature['tokens'])
    row = {name: np.zeros((5, 24), np.int32) for name in described['inputs']}
    row['tokens'][:, :count] = feature['tokens']
    row['segments'][:, :count] = 1
    row['token_types'][:, :count] = feature['token_types']
    save_file(row, tmp_path / 'inputs.safetensors')
    command = [sys.executable, '-c', READER, str(tmp_path / 'inputs.safetensors'), *row]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    logits = load_file(folder / 'outputs.safetensors')['logits']
    scores = predict(text)['scores']
    chances = np.asarray(jax.nn.softmax(logits.astype(np.float32)))
    assert_close(chances, np.tile([scores[label] for label in described['labels']], (5, 1)), within=WITHIN)


# One text per mechanism for rows of 32 tokens, except local_p, which only cross-attention has.
TEXTS = {
    'softmax': 'longformer(4)',
    'lsh': 'lsh(8, 2)',
    'favor': 'favor(16)',
    'linear': 'linear',
    'sparsemax': 'sparsemax(window(4))',
    'entmax': 'entmax(window(4))',
    'hard': 'hard(full)',
    'linformer': 'linformer(8, 32)',
    'nystrom': 'nystrom(4)',
    'induced': 'induced(8)',
    'sinkhorn': 'sinkhorn(8, 4)',
    'routing': 'routing(4, 8)',
    'synthesizer': "synthesizer('dense', 32)",
}


@pytest.mark.parametrize(
    'name', ['softmax', *(pytest.param(one, marks=pytest.mark.slow) for one in TEXTS if one != 'softmax')]
)
def test_every_mechanism_equals_the_model(tmp_path: Path, name: str):
    config = ModelConfig(
        width=16, heads=2, layers=1, vocab_size=30, max_length=32, attention=TEXTS[name], attention_dropout_rate=0.0,
        global_tokens=4 if name == 'softmax' else 0, shared_qk=name == 'lsh',
    )  # fmt: skip
    head = HeadConfig(kind='token', outputs=3)
    params = random_params(lambda: FineTuningModel(config, head, rngs=nnx.Rngs(0)))
    made = Pretrained(config, head, (), 'token_classification', '', None, True, lambda: params)
    model = exportable_encoder(tmp_path, made, 32)
    names = tuple(model.lengths)
    assert ('is_global' in names) == (config.global_tokens > 0)
    export_jax(model, tmp_path / 'exported')
    inputs = rows_of(3, 32, 30, names)
    wanted = jax.jit(model.call)(model.params, *inputs.values())
    found = run_program(tmp_path / 'exported', **inputs)
    assert_close(found['logits'], np.asarray(wanted['logits']), within=WITHIN)


def test_the_texts_name_every_mechanism():
    assert {*TEXTS, 'local_p'} == {*NAMES}


@pytest.mark.slow
def test_local_p_equals_the_model(tmp_path: Path):
    config = ModelConfig(
        width=16, heads=2, layers=1, vocab_size=30, max_length=16, decoder_layers=1, decoder_attention='causal',
        cross_attention='local_p(2)', attention_dropout_rate=0.0,
    )  # fmt: skip
    params = random_params(lambda: EncoderDecoder(config, rngs=nnx.Rngs(0)))
    made = Pretrained(config, HeadConfig(), (), 'text_to_text', '', None, True, lambda: params)
    model = exportable_encoder_decoder(made, 16)
    export_jax(model, tmp_path / 'exported')
    sides = (rows_of(3, 16, 30, ('tokens', 'segments')), rows_of(3, 16, 30, ('tokens', 'segments')))
    arrays = [array for side in sides for array in side.values()]
    inputs = dict(zip(model.lengths, arrays, strict=True))
    wanted = jax.jit(model.call)(model.params, *inputs.values())
    found = run_program(tmp_path / 'exported', **inputs)
    assert_close(found['logits'], np.asarray(wanted['logits']), within=WITHIN)


def test_a_masked_language_model_has_logits_of_every_token(tmp_path: Path):
    source = write_checkpoint(tmp_path, 'fill_mask')
    model = open_exportable(source, length=16)
    export_jax(model, tmp_path / 'exported')
    found = run_program(tmp_path / 'exported', **rows_of(2, 16, 20, tuple(model.lengths)))
    assert found['logits'].shape == (2, 16, model.params['encoder/embeddings/token/embedding'].shape[0])


@pytest.mark.lenient_promotion  # building a run creates its optimizer
def test_a_language_model_has_the_logits_of_next_tokens(tmp_path: Path):
    workdir = workdir_of(tmp_path, **{'data.units': 'bytes', 'data.vocab_size': 256})
    model = open_exportable(workdir)
    assert model.lengths == {'tokens': 32, 'segments': 32} and model.origin == f'{workdir} step 0'
    export_jax(model, tmp_path / 'exported')
    inputs = rows_of(3, 32, 256, ('tokens', 'segments'))
    wanted = jax.jit(model.call)(model.params, *inputs.values())
    assert_close(run_program(tmp_path / 'exported', **inputs), jax.tree.map(np.asarray, wanted), within=WITHIN)


def test_an_encoder_decoder_has_the_logits_of_given_targets(tmp_path: Path):
    model = open_exportable(TEXT_TO_TEXT / 't5_1', length=12)
    assert list(model.lengths) == ['source', 'source_segments', 'targets', 'target_segments']
    export_jax(model, tmp_path / 'exported')
    rows = rows_of(4, 12, 20, ('tokens', 'segments'))
    inputs = {name: rows['segments' if name.endswith('segments') else 'tokens'] for name in model.lengths}
    wanted = jax.jit(model.call)(model.params, *inputs.values())
    assert_close(run_program(tmp_path / 'exported', **inputs), jax.tree.map(np.asarray, wanted), within=WITHIN)


def test_what_cannot_be_exported_gives_one_line(tmp_path: Path):
    choice = write_checkpoint(tmp_path, 'multiple_choice')
    with pytest.raises(InputError, match='this model reads several rows per example'):
        open_exportable(choice)
    with pytest.raises(InputError, match='--length is 25; it must be from 1 to 24, the positions of the model'):
        open_exportable(choice, length=25)
    with pytest.raises(InputError, match='bert-base-uncased is no folder; names of a hub are not downloaded'):
        open_exportable(Path('bert-base-uncased'))
