"""Tests that the comparison of a resumed run names lost, repeated and changed lines, files and numbers."""

import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import pytest

from efficient_attention.config.checkpoint import CheckpointConfig
from efficient_attention.workdir.checkpoint_writer import CheckpointWriter
from scripts.stress.compare_resumed_run import folder_differences

LINES = [
    {'step': 1, 'split': 'train', 'loss': 2.5, 'tokens_per_second': 5.0},
    {'step': 2, 'split': 'train', 'loss': 'nan'},
]


def write_run(workdir: Path, lines: list[dict], weight: float = 1.0) -> None:
    """Writes a workdir with these metrics and one checkpoint."""
    workdir.mkdir(parents=True)
    (workdir / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    with CheckpointWriter(workdir, CheckpointConfig()) as checkpoints:
        checkpoints.save(2, {'params': {'weight': jnp.full(3, weight)}, 'bias': jnp.zeros(2)}, record={})


@pytest.fixture(scope='module')
def expected(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp('expected')
    write_run(folder / 'seed_0', LINES)
    (folder / 'seeds.json').write_text('{}')
    return folder


@pytest.fixture
def found(expected, tmp_path) -> Path:
    return Path(shutil.copytree(expected, tmp_path / 'found'))


def test_equal_runs_do_not_differ_by_their_speed(expected, found):
    lines = [{**LINES[0], 'tokens_per_second': 7.0}, LINES[1]]
    (found / 'seed_0' / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    assert folder_differences(found, expected) == []


@pytest.mark.parametrize(
    'lines, said',
    [
        (LINES[:1], 'is missing'),
        ([*LINES, LINES[1]], "metrics line 3: step 2 of split 'train' comes twice"),
        ([{**LINES[0], 'loss': 2.5000001}, LINES[1]], 'is not expected'),
    ],
    ids=['lost', 'doubled', 'changed'],
)
def test_metrics_that_differ_are_named(expected, found, lines: list[dict], said: str):
    (found / 'seed_0' / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    assert said in folder_differences(found, expected)[0]
    assert folder_differences(found, expected, was_stopped=True) == folder_differences(found, expected)


def test_arrays_that_differ_in_a_bit_are_named(expected, tmp_path):
    write_run(tmp_path / 'found' / 'seed_0', LINES, weight=1.0000001)
    (tmp_path / 'found' / 'seeds.json').write_text('{"mean": 1}')
    folder = tmp_path / 'found'
    assert folder_differences(folder, expected) == [
        f'{folder}/seed_0: checkpoint 2: params/weight',
        f'{folder}/seeds.json differs',
    ]


def test_a_checkpoint_that_is_missing_is_named(expected, found):
    shutil.rmtree(found / 'seed_0' / 'checkpoints' / '2')
    assert folder_differences(found, expected) == [f'{found}/seed_0: checkpoints of the steps [], expected [2]']


def test_exports_are_compared_byte_by_byte(tmp_path):
    for name, weights in {'expected': b'abc', 'found': b'abd'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / 'model.safetensors').write_bytes(weights)
    (tmp_path / 'found' / 'half.tmp').write_bytes(b'')
    (tmp_path / 'expected' / 'config.json').write_bytes(b'{}')
    found = tmp_path / 'found'
    assert folder_differences(found, tmp_path / 'expected') == [
        f'{found}: half.tmp is not expected',
        f'{found}: config.json is missing',
        f'{found}: model.safetensors differs',
    ]
