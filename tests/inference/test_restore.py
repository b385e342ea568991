"""Tests of parameters restored from a run's folder, and of errors if the model or the data differ."""

import json
import shutil

import jax
import numpy as np
import pytest
from flax import nnx

from efficient_attention.errors import InputError
from efficient_attention.inference.restore import abstract_params, restore
from efficient_attention.training.run import build_run
from tests.training.tiny_run import drawn_workdir, tiny_config

# Optax multiplies Python floats by int32 counts, which the tests otherwise forbid.
pytestmark = [pytest.mark.lenient_promotion, pytest.mark.devices]


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
    """Returns a run's folder written by one device; the tests read it on eight."""
    folder = tmp_path_factory.mktemp('restore')
    return drawn_workdir(build_run(tiny_config(folder), jax.devices()[:1]), folder / 'workdir')


def edit(workdir, group: str, **fields) -> None:
    path = workdir / 'config.json'
    config = json.loads(path.read_text(encoding='utf-8'))
    config[group] |= fields
    path.write_text(json.dumps(config), encoding='utf-8')


@pytest.fixture
def copy(workdir, tmp_path):
    return shutil.copytree(workdir, tmp_path / 'copy')


def test_the_parameters_come_back(workdir):
    trained = restore(workdir)
    assert trained.step == 0
    task = trained.evaluation.task
    drawn = jax.jit(lambda: nnx.to_pure_dict(nnx.state(task.make_model(nnx.Rngs(0)))))()
    jax.tree.map(np.testing.assert_array_equal, trained.params, drawn)
    wanted = abstract_params(task, trained.evaluation.mesh)
    jax.tree.map(lambda leaf, at: np.testing.assert_(leaf.sharding == at.sharding), trained.params, wanted)


def test_a_step_that_is_not_there_lists_those_there_are(workdir):
    with pytest.raises(InputError, match='there is no checkpoint of step 5 in .*; kept steps: 0$'):
        restore(workdir, wanted=5)


def test_without_a_run_or_a_checkpoint(copy, tmp_path):
    with pytest.raises(InputError, match=r'no run there \(config.json is missing\)'):
        restore(tmp_path)
    shutil.rmtree(copy / 'checkpoints')
    with pytest.raises(InputError, match='there is no checkpoint in '):
        restore(copy)


def test_a_config_edited_to_another_model_names_the_first_array(copy):
    edit(copy, 'model', width=32, embedding_width=32, feed_forward_width=128, head_width=16)
    with pytest.raises(InputError, match=r'is from another model: params/\S+ is float32 \[.*16.*\] in the checkpoint'):
        restore(copy)


def test_a_config_edited_to_other_examples_names_the_field(copy):
    edit(copy, 'data', pairs='sop')
    with pytest.raises(InputError, match=r'was made with config\.data\.pairs = "nsp", now it is "sop"'):
        restore(copy)


def test_what_concerns_the_training_alone_may_differ(copy):
    edit(copy, 'optimizer', learning_rate=0.5)
    edit(copy, 'train', steps=3)
    assert restore(copy).step == 0
