"""Tests ELMo's method end to end: a bidirectional language model is trained, then a classifier reads a frozen mix of
its layers.
"""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import efficient_attention as ea
from efficient_attention.errors import InputError
from efficient_attention.inference.evaluate_workdir import evaluate_workdir
from efficient_attention.inference.generate import TextGenerator
from efficient_attention.interop.pretrained import open_pretrained
from efficient_attention.interop.workdir_import import read_model_run_config
from efficient_attention.training.fill_config import FilledConfig, fill_config
from efficient_attention.training.initial_params import InitialParams
from efficient_attention.training.loop import train
from efficient_attention.training.run import build_run
from tests.tasks.test_language_modelling import config_of
from tests.training.tiny_fine_tuning import tiny_values

# Optax mixes Python floats with int32 counts, which strict promotion refuses
pytestmark = pytest.mark.lenient_promotion

MODEL = {'cell': 'lstm', 'bidirectional': True, 'directions_apart': True, 'feed_forward': False, 'positions': 'none'}
FIELDS = {f'model.{name}': value for name, value in MODEL.items()}
FIELDS |= {'data.units': 'tokenizer', 'data.vocab_size': 80, 'model.vocab_size': 80, 'train.steps': 6}
FIELDS |= {'model.tied_output': False, 'model.loss_chunk': 8}


@pytest.fixture(scope='module')
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('two_way')
    train(config_of(folder, **FIELDS), folder / 'run')
    return folder / 'run'


@pytest.fixture(scope='module')
def filled(run: Path) -> FilledConfig:
    """Returns the config of a classifier that reads the features of the run's frozen layers."""
    fields = {'optimizer.frozen': ('^encoder/',), 'train.start_from': str(run), 'examples.buckets': (16,)}
    fields |= {'optimizer.weight_decay': 0.1, 'checkpoint.every_steps': 4, 'eval.every_steps': 4, 'train.steps': 4}
    values = tiny_values(run.parent / 'files', **fields)
    values['model'], values['head'] = dict.fromkeys(values['model']), dict.fromkeys(values['head'])
    values['data']['tokenizer'] = None
    values['head'] |= {'features': 'mix', 'pooling': 'attention'}
    return fill_config(values)


@pytest.fixture(scope='module')
def trained(filled: FilledConfig, run: Path) -> tuple[Path, dict[str, float]]:
    """Returns the workdir and the metrics of such a classifier after four steps."""
    workdir = run.with_name('trained')
    return workdir, train(filled.config, workdir, examples=filled.examples, pretrained=filled.pretrained)


def test_both_directions_have_losses_of_their_own(run: Path):
    metrics = evaluate_workdir(run)
    assert {'causal_lm_loss', 'backward_lm_loss', 'backward_lm_accuracy', 'causal_lm_below_unigram'} <= set(metrics)
    assert 0 < metrics['backward_lm_weight'] < metrics['causal_lm_weight']


def test_frozen_layers_stay_and_all_else_moves(filled: FilledConfig, trained: tuple[Path, dict[str, float]]):
    assert filled.config.model.directions_apart and filled.config.model.tied_output
    started = build_run(filled.config, examples=filled.examples)
    before = jax.device_get(InitialParams(filled.config, filled.pretrained).make_initial_state(started).params)
    theirs = filled.pretrained.params()
    assert list(theirs) == ['encoder']
    jax.tree.map(np.testing.assert_array_equal, before['encoder'], theirs['encoder'])
    after = open_pretrained(trained[0], checkpoint='last').params()
    jax.tree.map(np.testing.assert_array_equal, before['encoder'], after['encoder'])
    for name in ('mix', 'pooling', 'pooler', 'head'):
        moved = jax.tree.map(lambda old, new: bool((old != new).any()), before[name], after[name])
        assert all(jax.tree.leaves(moved)), moved


def test_the_run_is_trained_evaluated_and_answers(run: Path, trained: tuple[Path, dict[str, float]]):
    workdir, metrics = trained
    assert np.isfinite(metrics['accuracy'])
    assert ea.pipeline('text-classification', workdir)('a good film')['label'] in ('good', 'bad')
    vectors = ea.pipeline('feature-extraction', run)('a good film')
    assert vectors.shape[1] == 16


def test_what_such_a_model_is_not_is_said_in_one_line(run: Path, tmp_path: Path):
    with pytest.raises(InputError, match='model.bidirectional is True; it must be False in a decoder'):
        TextGenerator(run)
    values = json.loads((run / 'config.json').read_text(encoding='utf-8'))
    values['data']['units'] = 'bytes'
    (tmp_path / 'config.json').write_text(json.dumps(values), encoding='utf-8')
    with pytest.raises(
        InputError,
        match="directions_apart and data.units 'bytes'; as an encoder, such a model needs data.units 'tokenizer'$",
    ):
        read_model_run_config(tmp_path)
    with pytest.raises(InputError, match='^model.bidirectional is True; it must be False in a language model, which'):
        config_of(tmp_path, **FIELDS | {'model.directions_apart': False})
