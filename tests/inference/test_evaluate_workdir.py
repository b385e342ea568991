"""Tests of evaluating a run's folder: the caller chooses step, batch size and devices."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from efficient_attention.config.dict_conversion import to_dict
from efficient_attention.config.mesh import MeshConfig
from efficient_attention.errors import InputError
from efficient_attention.inference import evaluate_workdir as module
from efficient_attention.inference.evaluate_workdir import evaluate_workdir
from efficient_attention.processes.watchdog import EVALUATING, Watchdog
from efficient_attention.training.run import build_run
from tests.training.tiny_run import drawn_workdir, tiny_config

# Optax multiplies Python floats by int32 counts, which the tests otherwise forbid.
pytestmark = [pytest.mark.lenient_promotion, pytest.mark.devices]


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
    """Returns a run's folder written by one device; its config has 2 x 2 x 2 devices and a batch of only 4 rows."""
    folder = tmp_path_factory.mktemp('evaluation')
    config = tiny_config(folder, **{'model.layers': 1})
    workdir = drawn_workdir(build_run(config, jax.devices()[:1]), folder / 'workdir')
    train = dataclasses.replace(config.train, batch_size=4)
    meshed = dataclasses.replace(config, train=train, mesh=MeshConfig(data=2, fsdp=2, tensor=2))
    (workdir / 'config.json').write_text(json.dumps(to_dict(meshed)), encoding='utf-8')
    return workdir


def test_the_training_batch_and_mesh_do_not_matter(workdir):
    found = evaluate_workdir(workdir)
    assert found['step'] == 0
    assert found['nsp_weight'] > 0 and found['masked_lm_weight'] > 0
    assert found['masked_lm_perplexity'] > 10  # The model is untrained, with 70 tokens.


def test_heads_are_switched_off(workdir, monkeypatch):
    plain, masked = evaluate_workdir(workdir), evaluate_workdir(workdir, mask_heads=[(0, 1)])
    assert masked['masked_heads'] == '0.1' and 'masked_heads' not in plain
    assert masked['masked_lm_loss'] != plain['masked_lm_loss']
    monkeypatch.setattr(module, 'gates_without', lambda config, _: np.ones((config.layers, config.heads)))
    kept = evaluate_workdir(workdir, mask_heads=[(0, 1)])
    assert kept['masked_lm_loss'] == plain['masked_lm_loss']
    monkeypatch.undo()
    with pytest.raises(InputError, match='^there is no layer 1; the model has layers 0 to 0$'):
        evaluate_workdir(workdir, mask_heads=[(1, 0)])


def test_a_batch_that_does_not_divide_over_the_devices_is_refused(workdir):
    with pytest.raises(InputError, match=r'eval.batch_size 3 does not divide over 4 devices'):
        evaluate_workdir(workdir, batch_size=3)


def test_a_batch_of_no_rows_is_refused(workdir):
    with pytest.raises(InputError, match=r'eval\.batch_size is 0'):
        evaluate_workdir(workdir, batch_size=0)


def test_a_missing_step_or_run_is_named(workdir, tmp_path):
    with pytest.raises(InputError, match='there is no checkpoint of step 7'):
        evaluate_workdir(workdir, checkpoint='7')
    with pytest.raises(InputError, match='no run there'):
        evaluate_workdir(tmp_path)


def test_an_evaluation_tells_its_watchdog_of_each_batch(workdir, monkeypatch):
    notes = []
    monkeypatch.setattr(Watchdog, 'note_progress', lambda _, step, doing: notes.append((step, doing)))
    evaluate_workdir(workdir, batch_size=4)
    assert len(notes) > 2 and set(notes) == {(0, EVALUATING)}
