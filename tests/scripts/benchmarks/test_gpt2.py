"""Tests the GPT-2 benchmark: its report and command line, and real measurements of our programs on a tiny GPT-2."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from efficient_attention.errors import InputError
from scripts import benchmark as command
from scripts.benchmarks import gpt2 as benchmark

TINY = benchmark.MODEL | {'layers': 1, 'width': 8, 'heads': 2, 'vocab_size': 32, 'max_length': 128}


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> list[dict[str, Any]]:
    """Runs `benchmark.py gpt2` with figures that follow from a formula; returns the measured shapes."""
    shapes = []

    def figures_of(program: list[str], shape: dict[str, Any], allocator: str) -> dict[str, Any]:
        is_ours = program == benchmark.CHILD
        assert allocator == 'keep' and (is_ours or shape['program'] != 'write')
        shapes.append(shape | {'is_peer': program[-1] == benchmark.PEER})
        seconds, cpu = ([1.0, 2.0], [1.0, 2.0]) if is_ours else ([3.0], [6.0])
        times = {'seconds': seconds, 'cpu_seconds': cpu}
        made = [-1.0, -2.0] if is_ours else [-1.0005, -2.5]
        figures = {'units': 64, 'first_seconds': 7.0, 'baseline_bytes': 1, 'peak_bytes': 100 if is_ours else 200}
        return {'name': 'fake', 'made': made} | figures | times

    monkeypatch.setattr(command, 'run_measurement_process', figures_of)
    python = Path(__file__)  # any existing file passes the check
    monkeypatch.setattr('sys.argv', ['benchmark.py', 'gpt2', '--peers_python', str(python), *map(str, arguments)])
    command.main()
    return shapes


def test_both_parts_are_compared_with_one_model(tmp_path: Path, monkeypatch, capsys):
    path = tmp_path / 'figures.json'
    shapes = run_command(monkeypatch, '--rounds', 1, '--output', path)
    programs = ['write', 'choices', 'choices', 'choices', 'choices', 'generate', 'generate']
    assert [shape['program'] for shape in shapes] == programs
    assert [number for number, shape in enumerate(shapes) if shape['is_peer']] == [2, 6]
    assert len({shape['folder'] for shape in shapes}) == 1
    report = json.loads(path.read_text(encoding='utf-8'))['gpt2']
    for part in ('choices', 'shared', 'generate'):
        row = report['parts'][part]
        assert (row['ratio'], row['cpu_ratio'], row['memory'], row['equal']) == (2.0, 4.0, 0.5, 0.5)
        assert 'folder' not in row
    out = capsys.readouterr().out
    assert 'option tokens' in out and out.count('the results of the two sides differ') == 3


def test_bad_flags_are_refused(monkeypatch):
    with pytest.raises(InputError, match='^--calls is 0; it must be at least 1$'):
        run_command(monkeypatch, '--calls', 0)


def test_our_programs_measure_a_model_of_a_folder(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(benchmark, 'MODEL', TINY)
    folder = str(tmp_path / 'model')
    benchmark.measure_shape({'program': 'write', 'model': TINY, 'folder': folder})
    sizes = {'context': 64, 'options': 2, 'option': 3, 'made': 10, 'calls': 1, 'folder': folder}
    shared, separate = (
        benchmark.measure_shape(sizes | {'program': 'choices'}, shares_contexts=shares) for shares in (True, False)
    )
    written = benchmark.measure_shape(sizes | {'program': 'generate'})
    opened = benchmark.open_folder(folder)
    decoder = nnx.merge(opened.graph, opened.params)

    @jax.jit
    def log_probs(ids_1L: jax.Array) -> jax.Array:
        return jax.nn.log_softmax(decoder.logits(decoder.hidden(ids_1L, jnp.ones_like(ids_1L))), -1)

    def total(context: list[int], option: list[int]) -> float:
        found_LV = log_probs(jnp.asarray([context + option]))[0]
        return float(sum(found_LV[len(context) - 1 + place, one] for place, one in enumerate(option)))

    questions = benchmark.random_questions(sizes)[:2]  # the first call and the timed call
    wanted = [total(context, option) for context, *options in questions for option in options]
    np.testing.assert_allclose(shared['made'], wanted, atol=1e-4)
    np.testing.assert_allclose(separate['made'], wanted, atol=1e-4)
    assert shared['units'] == 6 and shared['cache_bytes'] >= 2 * 4 * 2 * 67 * 8 and separate['cache_bytes'] == 0

    assert written['units'] == 10 and len(written['seconds']) == 1 and written['cache_bytes'] >= 2 * 4 * 74 * 8
    for prompt, ids in zip(benchmark.random_prompts(sizes), written['made'], strict=False):
        assert len(ids) == 10
        found_LV = log_probs(jnp.asarray([prompt + ids]))[0, len(prompt) - 1 : -1]
        assert found_LV.argmax(-1).tolist() == ids
