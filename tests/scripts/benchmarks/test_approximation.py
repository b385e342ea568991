"""Tests the attention errors measured in a trained encoder: exact mechanisms have none, more landmarks and ranks lose
less.
"""

import json
import runpy
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import efficient_attention as ea
from efficient_attention.errors import InputError
from scripts.benchmarks.approximation import collect_qkv, low_rank_errors, mechanism_errors, relative_errors
from tests.inference.tiny_checkpoint import write_checkpoint
from tests.training.tiny_run import write_corpus

SCRIPT = Path(__file__).resolve().parents[3] / 'scripts' / 'benchmarks' / 'approximation.py'


def drawn_layers(length: int = 32):
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.normal(size=(2, 1, length, 2, 8)), jnp.float32) for _ in range(3))


def test_what_computes_the_same_has_no_error_and_less_has_more():
    texts = ('full', 'window(31)', 'window(4)', 'nystrom(32, 20)', 'nystrom(4)', 'linformer(8, 32)', 'favor(64)')
    found = mechanism_errors(drawn_layers(), {text: ea.parse_mechanism(text) for text in texts})
    assert list(found['full']) == ['layer 1', 'layer 2', 'mean'] and found['full']['mean'] == 0.0
    assert found['window(31)']['mean'] < 1e-5 and found['nystrom(32, 20)']['mean'] < 0.01
    for text in ('window(4)', 'nystrom(4)', 'linformer(8, 32)', 'favor(64)'):
        assert found[text]['mean'] > 0.05, text


def test_ranks_lose_less_the_higher_they_are_and_nothing_at_the_length():
    found = low_rank_errors(drawn_layers(), (2, 8, 32))
    means = [found[f'best of rank {rank}']['mean'] for rank in (2, 8, 32)]
    assert means[0] > means[1] > means[2] and means[2] < 1e-5
    assert low_rank_errors(drawn_layers(), ()) == {}


def test_an_error_is_a_share_of_the_norm():
    wanted = np.ones((2, 4))
    assert relative_errors(np.stack([np.ones(4), np.full(4, 1.5)]), wanted) == {
        'layer 1': 0.0,
        'layer 2': 0.5,
        'mean': 0.25,
    }


def test_a_real_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    model = write_checkpoint(tmp_path / 'model', 'fill_mask')
    write_corpus(tmp_path)
    source = f'text:{tmp_path}/corpus.txt'
    query, key, value = collect_qkv(model, source, 1, 12)
    assert query.shape == key.shape == value.shape and query.shape[1:3] == (1, 12)
    with pytest.raises(InputError, match=r'^--source text:.*: 1 documents have 12 tokens; --rows asks for 2$'):
        collect_qkv(model, source, 2, 12)
    with pytest.raises(InputError, match=r'^--length is 512; .*model has \d+ positions \(model.max_length\)$'):
        collect_qkv(model, source, 1, 512)
    words = ['--model', str(model), '--source', source, '--rows', '1', '--length', '12', '--ranks', '2', 'window(2)']
    monkeypatch.setattr(sys, 'argv', ['approximation.py', *words])
    runpy.run_path(str(SCRIPT), run_name='__main__')
    assert list(json.loads(capsys.readouterr().out.splitlines()[-1])) == ['window(2)', 'best of rank 2']
