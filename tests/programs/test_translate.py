"""Tests the text-to-text command: all its inputs and outputs give the same texts in the same order."""

import dataclasses
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from efficient_attention.config.dict_conversion import to_dict
from efficient_attention.inference import translate_file
from efficient_attention.tasks.metrics.translation import translation_scores
from efficient_attention.training.run import build_run
from efficient_attention.workdir.checkpoint_writer import CheckpointWriter
from efficient_attention.workdir.config_file import claim_workdir
from tests.tasks.test_text_to_text import config_of

SCRIPT = Path(__file__).resolve().parent.parent.parent / 'scripts' / 'translate.py'
LINES = ['3 1 4', '', '2 7 1 8', '1 6', '9 9 8 7', '5']
PREFIX = '4 2 '
# Greedy search on rows of one length keeps compilation short, as each call compiles a program.
SEARCH = ['--beams=1', '--max_tokens=5', '--batch_size=2']

pytestmark = pytest.mark.lenient_promotion  # building a run creates its optimizer


@pytest.fixture(scope='module')
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the workdir of a run that has saved two states with random parameters, at steps 0 and 1."""
    folder = tmp_path_factory.mktemp('translate') / 'run'
    fields = {'pairs.prefix': (PREFIX,), 'model.init_std': 0.7, 'checkpoint.keep': 2}
    config = config_of(**fields)
    run = build_run(config)
    claim_workdir(folder, config)
    run.task.save_assets(folder)
    state, rng = run.init_random_state(), np.random.default_rng(0)

    def draw(leaf: jax.Array) -> jax.Array:
        return jax.device_put(rng.normal(0.0, 0.7, leaf.shape).astype(leaf.dtype), leaf.sharding)

    with CheckpointWriter(folder, config.checkpoint) as checkpoints:
        for step in range(2):
            checkpoints.save(step, state, record={'fingerprint': {'config': to_dict(config)}})
            state = dataclasses.replace(state, params=jax.tree.map(draw, state.params))
    return folder


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Returns a function that runs the script in this process: exit code, output, errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, 'argv', ['translate.py', *map(str, arguments)])
        code = 0
        try:
            runpy.run_path(str(SCRIPT), run_name='__main__')
        except SystemExit as exited:
            code = exited.code
        return code, *capsys.readouterr()

    return run


def test_all_ways_find_the_same_texts(workdir: Path, tmp_path: Path, call, monkeypatch: pytest.MonkeyPatch):
    """Compares texts from standard input, from lines, from JSON objects and after an interruption, and the texts'
    scores.
    """
    (source := tmp_path / 'in').write_text('\n'.join(LINES) + '\n', encoding='utf-8')
    with source.open(encoding='utf-8') as stream:
        monkeypatch.setattr(sys, 'stdin', stream)
        code, streamed, _ = call('--model', workdir, *SEARCH)
    texts = streamed.split('\n')[:-1]
    assert code == 0 and len(texts) == len(LINES) and texts[1] == '' and len(set(texts)) > 2

    (gold := tmp_path / 'gold').write_text('\n'.join(['x', *texts[1:]]) + '\n', encoding='utf-8')
    files = ['--model', workdir, '--input', source, *SEARCH]
    code, said, _ = call(*files, '--output', tmp_path / 'objects', '--format=jsonl', '--references', gold)
    objects = [json.loads(line)['best'] for line in (tmp_path / 'objects').read_text(encoding='utf-8').splitlines()]
    assert code == 0 and [one[0]['text'] if one else '' for one in objects] == texts
    assert all(one[0]['score'] < 0 for one in objects if one)
    scores = json.loads(said)
    alone = translation_scores(texts, ['x', *texts[1:]])
    assert scores == alone | {'beams': 1, 'length_penalty': 'gnmt 0.6'} and scores['exact_match'] == 5 / 6
    code, said, _ = call('--output', tmp_path / 'objects', '--format=jsonl', '--references', gold)
    assert code == 0 and json.loads(said) == alone

    monkeypatch.setattr(translate_file, 'CHUNK', 1)
    whole, asked = translate_file.translate_chunk, []

    def broken(translator, lines, before):
        if asked:
            raise KeyboardInterrupt
        asked.append(lines)
        return whole(translator, lines, before)

    monkeypatch.setattr(translate_file, 'translate_chunk', broken)
    assert call(*files, '--output', tmp_path / 'lines')[0] == 130
    assert not (tmp_path / 'lines').exists()
    assert (tmp_path / 'lines.partial').read_text(encoding='utf-8') == '\n'.join(texts[:2]) + '\n'
    monkeypatch.setattr(translate_file, 'translate_chunk', lambda *some: asked.append(some[1]) or whole(*some))
    assert call(*files, '--output', tmp_path / 'lines')[0] == 0
    assert (tmp_path / 'lines').read_text(encoding='utf-8') == streamed and asked == [LINES[:2], LINES[2:4], LINES[4:]]


def test_a_prefix_and_a_checkpoint_are_the_ones_that_are_named(workdir: Path, tmp_path: Path, call):
    (source := tmp_path / 'in').write_text('\n'.join(LINES) + '\n', encoding='utf-8')
    (with_prefix := tmp_path / 'prefixed').write_text(
        ''.join(f'{PREFIX}{line}\n' if line else '\n' for line in LINES), encoding='utf-8'
    )

    def found(*arguments: object) -> str:
        output = tmp_path / 'out'
        output.unlink(missing_ok=True)
        assert call('--model', workdir, '--output', output, *SEARCH, *arguments)[0] == 0
        return output.read_text(encoding='utf-8')

    newest, oldest = found('--input', source), found('--input', source, '--checkpoint=0')
    assert newest == found('--input', with_prefix, '--prefix', '') == found('--input', source, '--checkpoint=1')
    assert newest == found('--input', source, '--average=1')
    assert len({newest, oldest, found('--input', source, '--average=2')}) == 3
    assert newest != found('--input', source, '--prefix', '')
