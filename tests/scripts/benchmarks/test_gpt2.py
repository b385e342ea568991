"""Tests the GPT-2 benchmark: its report and command line, and real measurements of our programs on a tiny GPT-2."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
        shapes.append(shape)
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
    assert [shape['program'] for shape in shapes] == ['write', 'choices', 'choices', 'generate', 'generate']
    assert len({shape['folder'] for shape in shapes}) == 1
    report = json.loads(path.read_text(encoding='utf-8'))['gpt2']
    for part in ('choices', 'generate'):
        row = report['parts'][part]
        assert (row['ratio'], row['cpu_ratio'], row['memory'], row['equal']) == (2.0, 4.0, 0.5, 0.5)
        assert 'folder' not in row
    assert 'option tokens' in capsys.readouterr().out


def test_bad_flags_are_refused(monkeypatch):
    with pytest.raises(InputError, match='^--calls is 0; it must be at least 1$'):
        run_command(monkeypatch, '--calls', 0)


def test_our_programs_measure_a_model_of_a_folder(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(benchmark, 'MODEL', TINY)
    folder = str(tmp_path / 'model')
    benchmark.measure_shape({'program': 'write', 'model': TINY, 'folder': folder})
    sizes = {'context': 64, 'options': 2, 'option': 3, 'made': 10, 'calls': 1, 'folder': folder}
    scored = benchmark.measure_shape(sizes | {'program': 'choices'})
    assert scored['units'] == 6 and len(scored['made']) == 2 and all(-30 < one < -3 for one in scored['made'])
    written = benchmark.measure_shape(sizes | {'program': 'generate'})
    assert written['units'] == 10 and np.shape(written['made']) == (1, 10) and len(written['seconds']) == 1
