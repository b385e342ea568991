"""Tests of checkpoints read from a run's folder: unchanged parameters, and one line for runs without an encoder."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from efficient_attention.errors import InputError
from efficient_attention.inference.pipeline import pipeline
from efficient_attention.interop.huggingface_export import save_pretrained
from efficient_attention.interop.pretrained import open_encoder, open_pretrained
from efficient_attention.interop.workdir_import import (
    checkpoint_thresholds,
    describe_checkpoint,
    read_model_run_config,
    workdir_params,
)
from efficient_attention.workdir.checkpoint_writer import CheckpointWriter
from tests.training.tiny_run import fresh_workdir

pytestmark = pytest.mark.lenient_promotion  # A built run has an optimizer; Optax mixes Python floats with int32.


@pytest.fixture(scope='module')
def workdir(tmp_path_factory) -> Path:
    return fresh_workdir(tmp_path_factory.mktemp('interop'))


def test_parameters_are_those_of_the_checkpoint(workdir: Path):
    config = read_model_run_config(workdir)
    params = workdir_params(workdir, config)
    assert params.keys() == {'encoder', 'masked_lm', 'pooler', 'pair'}
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {'float32'}
    table = params['encoder']['embeddings']['token']['embedding']
    assert table.shape == (config.model.vocab_size, 16) and table.std() > 0.01


def test_it_goes_out_and_comes_back_to_the_bit(workdir: Path, tmp_path: Path):
    before = open_pretrained(workdir)
    assert (before.problem, before.family, before.tokenizer) == ('fill_mask', '', workdir / 'tokenizer.json')
    save_pretrained(tmp_path / 'out', before)
    after = open_pretrained(tmp_path / 'out')
    assert (after.model, after.problem, after.family) == (before.model, 'fill_mask', 'bert')
    assert jax.tree.all(jax.tree.map(np.array_equal, before.params(), after.params()))
    assert after.extra['architectures'] == ['BertForPreTraining']
    assert after.tokenizer == tmp_path / 'out' / 'tokenizer.json'


def test_a_tokenizer_that_was_changed_is_neither_exported_nor_asked(workdir: Path, tmp_path: Path):
    shutil.copytree(workdir, tmp_path / 'run')
    swap_ids(tmp_path / 'run' / 'tokenizer.json')
    line = f'^{tmp_path}/run is damaged: tokenizer.json is not what was written; restore the file of step 0, or'
    with pytest.raises(InputError, match=line):
        save_pretrained(tmp_path / 'out', open_pretrained(tmp_path / 'run'))
    assert not (tmp_path / 'out').exists()
    with pytest.raises(InputError, match=line):
        pipeline('fill-mask', tmp_path / 'run')


def swap_ids(path: Path) -> None:
    """Swaps the ids of two pieces of a tokenizer.json."""
    content = json.loads(path.read_text(encoding='utf-8'))
    vocabulary = content['model']['vocab']
    one, other = list(vocabulary)[-2:]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    path.write_text(json.dumps(content), encoding='utf-8')


def test_a_config_that_was_changed_is_named(workdir: Path, tmp_path: Path):
    shutil.copytree(workdir, tmp_path / 'run')
    values = json.loads((workdir / 'config.json').read_text())
    values['data']['lowercase'] = not values['data']['lowercase']
    (tmp_path / 'run' / 'config.json').write_text(json.dumps(values))
    with pytest.raises(InputError, match='config.json was changed: checkpoint step 0 was made with config.data.lowerc'):
        open_pretrained(tmp_path / 'run').params()


def test_a_checkpoint_that_is_not_there_is_named(workdir: Path):
    with pytest.raises(InputError, match='there is no checkpoint of step 7'):
        workdir_params(workdir, read_model_run_config(workdir), '7')


def test_a_mean_names_its_steps_and_has_no_thresholds(workdir: Path, tmp_path: Path):
    config = read_model_run_config(workdir)
    with CheckpointWriter(tmp_path, config.checkpoint) as checkpoints:
        for step in (3, 6):
            metrics = {'masked_lm_loss': 1.0, 'no_answer_threshold': 0.5} if step == 6 else None
            checkpoints.save(step, {'params': np.zeros(2)}, record={}, metrics=metrics)
    assert describe_checkpoint(tmp_path, config, 'average-2') == 'mean of steps 3, 6'
    assert describe_checkpoint(tmp_path, config) == 'step 6' and checkpoint_thresholds(tmp_path, config, '3') == {}
    assert checkpoint_thresholds(tmp_path, config) == {'no_answer_threshold': 0.5}
    with pytest.raises(InputError, match='no_answer_threshold was chosen for each checkpoint by itself, and a mean of'):
        checkpoint_thresholds(tmp_path, config, 'average-2')


def test_thresholds_of_an_evaluation_after_its_save_are_those_of_the_checkpoint(workdir: Path, tmp_path: Path):
    config = read_model_run_config(workdir)
    with CheckpointWriter(tmp_path, config.checkpoint) as checkpoints:
        checkpoints.save(3, {'params': np.zeros(2)}, record={'evaluations': []})
    with CheckpointWriter(tmp_path, config.checkpoint) as checkpoints:
        checkpoints.write_evaluation_metrics(3, {'f1': 1.0, 'no_answer_threshold': 3.5})
    assert checkpoint_thresholds(tmp_path, config) == {'no_answer_threshold': 3.5}


def test_parameters_of_another_config_are_named(workdir: Path):
    config = read_model_run_config(workdir)
    other = dataclasses.replace(config, model=dataclasses.replace(config.model, max_length=64))
    with pytest.raises(InputError, match='another model: params/encoder/embeddings/position/embedding is float32'):
        workdir_params(workdir, other)


def test_a_run_of_a_language_model_is_no_encoder(workdir: Path, tmp_path: Path):
    values = json.loads((workdir / 'config.json').read_text())
    values['task'] = 'language_modelling'
    values['data'] |= {'pairs': 'none', 'max_masked': 20}
    values['model'] |= {'token_types': 0, 'attention': 'causal'}
    (tmp_path / 'config.json').write_text(json.dumps(values))
    assert open_pretrained(tmp_path).problem == 'language_modelling'
    with pytest.raises(InputError, match='holds a language model, and an encoder or an encoder-decoder is needed; the'):
        open_encoder(tmp_path)
