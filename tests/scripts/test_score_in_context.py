"""Tests the script that scores in-context learning, on a model with random parameters."""

import json
import runpy
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.config.dict_conversion import from_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.data.sources.recall_rows import RecallRows
from efficient_attention.inference.in_context_scores import recall_test
from efficient_attention.inference.language_models import open_language_model
from efficient_attention.models.layer_readings import self_attention_weights
from efficient_attention.training.run import build_run
from efficient_attention.workdir.config_file import claim_workdir
from scripts.score_in_context import draw_heads
from tests.scripts.called import SCRIPTS, refusal_of
from tests.training.tiny_run import drawn_workdir, one_by_one

SCRIPT = 'score_in_context.py'


def drawn_model(folder: Path, vocab_size: int = 70, **model: object) -> str:
    """Returns the workdir of an untrained decoder of generated rows."""
    data = {'source': 'recall:200:20:2-9', 'units': 'words', 'cache': str(folder / 'cache'), 'length': 41}
    data |= {'vocab_size': vocab_size, 'held_out': 0.2}
    model = {'attention': 'causal', 'width': 8, 'vocab_size': vocab_size, 'token_types': 0, 'positions': 'none'} | model
    values = {'task': 'language_modelling', 'data': data, 'model': model, 'checkpoint': {'best_metric': ''}}
    run = build_run(from_dict(values, RunConfig), jax.devices()[:1])
    return str(drawn_workdir(run, folder / 'run', one_by_one(run)))


def test_each_line_has_one_number_of_keys_and_one_kind(tmp_path, monkeypatch, capfd):
    workdir = drawn_model(tmp_path, heads=2, layers=2)
    monkeypatch.setattr(
        sys, 'argv', [SCRIPT, '--workdir', workdir, '--keys', '2,8', '--rows', '9', '--output', str(tmp_path / 'x.png')]
    )
    runpy.run_path(str(SCRIPTS / SCRIPT), run_name='__main__')
    *lines, heads = map(json.loads, capfd.readouterr().out.splitlines())
    # the model has 70 ids, too few for keys that no text has
    assert [(line['keys'], line['kind']) for line in lines] == [
        (n, kind) for n in (2, 8) for kind in ('trained', 'new')
    ]
    assert all(len(line['sights']) == 4 and len(line['pairs_since']) == 5 for line in lines)
    assert len(heads['heads']['induction']) == len(heads['heads']['induction'][0]) == 2
    assert (tmp_path / 'x.png').read_bytes().startswith(b'\x89PNG')


def test_recurrent_models_are_scored_without_heads_and_unused_ids_are_keys_too(tmp_path, monkeypatch, capfd):
    workdir = drawn_model(tmp_path, 98, cell='gru', layers=1)
    monkeypatch.setattr(sys, 'argv', [SCRIPT, '--workdir', workdir, '--keys', '8', '--rows', '3'])
    runpy.run_path(str(SCRIPTS / SCRIPT), run_name='__main__')
    lines = list(map(json.loads, capfd.readouterr().out.splitlines()))
    assert [line['kind'] for line in lines] == ['trained', 'new', 'untrained']
    assert not any('heads' in line for line in lines)


def test_the_picture_has_the_heads_with_the_highest_scores(tmp_path):
    model = open_language_model(Path(drawn_model(tmp_path, heads=2, layers=2)))
    test = recall_test(model, RecallRows(1, 20, 4, 4))
    heads = {'previous_token': [[0.1, 0.2], [0.4, 0.3]], 'induction': [[0.1, 0.9], [0.4, 0.3]]}
    left, right = draw_heads(model, test, heads).axes
    assert left.get_title() == 'layer 2, head 1: previous_token 0.40'
    assert right.get_title() == 'layer 1, head 2: induction 0.90'
    tokens_BL = jnp.asarray(test.tokens_BL[:, :32])
    weights_NBHLL = self_attention_weights(nnx.merge(model.graph, model.params), tokens_BL, jnp.ones_like(tokens_BL))
    np.testing.assert_allclose(left.images[0].get_array(), weights_NBHLL[1, 0, 0], atol=1e-6)
    keys = test.tokens_BL[0, :32:2].tolist()
    earlier = {(2 * one + 1, 2 * place) for place, key in enumerate(keys) for one in range(place) if keys[one] == key}
    [circles] = right.collections
    assert set(map(tuple, circles.get_offsets().astype(int).tolist())) == earlier and earlier


def test_bad_input_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capfd):
    claim_workdir(tmp_path / 'pretraining', from_dict({}, RunConfig))
    recurrent = drawn_model(tmp_path, cell='gru', layers=1)
    for arguments, line in [
        (('--workdir', str(tmp_path / 'pretraining')), "of the task 'pretraining'; generating text needs"),
        (('--workdir', 'x', '--keys', '4,33'), '--keys is 33; it must be from 1 to 32'),
        (('--workdir', 'x', '--pairs', '15'), '--pairs is 15; it must be from 16 to 128'),
        (('--workdir', 'x', '--rows', '0'), '--rows is 0; it must be at least 1'),
        (('--workdir', 'x', '--seed', '-1'), '--seed is -1; it must be at least 0'),
        (('--workdir', recurrent, '--output', 'x.png'), 'recurrent layers (gru), which have no heads to draw'),
    ]:
        said = refusal_of(SCRIPT, *arguments, monkeypatch=monkeypatch, capfd=capfd).splitlines()[-1]
        assert said.startswith('error: ') and line in said


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
