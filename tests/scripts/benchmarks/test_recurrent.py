"""Tests the benchmark of recurrence: its ratios, growth and crossovers, its command line, and tiny real
measurements.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from efficient_attention.errors import InputError
from scripts import benchmark as command
from scripts.benchmarks import recurrent as benchmark

TINY = {'rows': 2, 'length': 8, 'width': 8, 'steps': 1}


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> list[dict[str, Any]]:
    """Runs `benchmark.py recurrent` with figures that follow from a formula; returns the measured shapes."""
    shapes = []

    def figures_of(program: list[str], shape: dict[str, Any], allocator: str) -> dict[str, Any]:
        assert allocator == 'keep' and (program == benchmark.CHILD) == (shape.get('side') != 'torch')
        shapes.append(shape)
        length = shape['length']
        if shape['program'] == 'memory':
            return {'temporary_bytes': length * (100 if shape['chunk'] == 0 else 20)}
        linear = 1e-3 * length if 'cell' in shape else 1e-3 * length**2 / 256
        times = {'ours': linear, 'nnx': 2 * linear, 'torch': 1.5 * linear, 'layer': linear}[shape.get('side', 'layer')]
        times = times / 4 if shape.get('cell') == 'sru2' else times
        made = {'name': 'fake', 'peak_bytes': 1, 'forward': [times / 3], 'forward_backward': [times, 9.0, times]}
        return {'token': [times]} if shape['program'] == 'token' else made

    monkeypatch.setattr(command, 'run_measurement_process', figures_of)
    words = ['benchmark.py', 'recurrent', '--peers_python', __file__]  # any existing file passes the check
    monkeypatch.setattr('sys.argv', [*words, *map(str, arguments)])
    command.main()
    return shapes


def test_cells_are_compared_with_peers_and_with_the_lstm(tmp_path: Path, monkeypatch, capsys):
    path = tmp_path / 'figures.json'
    shapes = run_command(monkeypatch, '--parts', 'cells', '--rounds', 2, '--output', path)
    sides = [shape['side'] for shape in shapes if shape['cell'] == 'gru']
    assert sides == ['ours', 'nnx', 'torch', 'torch', 'nnx', 'ours']
    found = json.loads(path.read_text(encoding='utf-8'))['recurrent']['cells']
    assert found['than_lstm'] == {'tanh': 1.0, 'gru': 1.0, 'sru1': 1.0, 'sru2': 4.0}
    assert found['cells']['lstm']['nnx']['forward_backward'] == 2 * 0.128
    lines = {tuple(line.split()[:2]): line.split()[-1] for line in capsys.readouterr().out.splitlines() if line}
    assert lines['lstm', 'nnx'] == '2.00' and lines['lstm', 'torch'] == '1.50'


def test_growth_and_crossovers_follow_from_the_times(tmp_path: Path, monkeypatch, capsys):
    path, plot = tmp_path / 'figures.json', tmp_path / 'figure.svg'
    lengths = ('--lengths', '64,128,512,1024')
    run_command(monkeypatch, '--parts', 'lengths,token', *lengths, '--output', path, '--plot', plot)
    found = json.loads(path.read_text(encoding='utf-8'))['recurrent']
    for part in ('lengths', 'token'):
        assert found[part]['exponents']['lstm'] == pytest.approx(1.0)
        assert found[part]['exponents']['full'] == pytest.approx(2.0)
        # A cell takes linear time, attention (here with windows, too) length^2 / 256: they cross above 256 tokens.
        assert found[part]['crossovers']['lstm'] == {'full': 512, 'window': 512}
        assert found[part]['crossovers']['sru2'] == {'full': 128, 'window': 128}
        assert found[part]['crossovers']['window'] == {'full': None} and list(found[part]['crossovers']['full']) == [
            'window'
        ]
    lines = capsys.readouterr().out
    assert 'lstm: cheaper than full attention from length 512' in lines and 'window: never cheaper than full' in lines
    drawn = plot.read_text(encoding='utf-8')
    assert 'one more token of a decoder' in drawn
    assert 'lstm, length^1.00, &lt; full from 512, &lt; window from 512' in drawn


def test_a_side_that_would_take_too_long_is_left_out(tmp_path: Path, monkeypatch):
    path = tmp_path / 'figures.json'
    words = ('--parts', 'lengths', '--lengths', '256,512,1024', '--max_seconds', 2, '--output', path)
    run_command(monkeypatch, *words)
    sides = json.loads(path.read_text(encoding='utf-8'))['recurrent']['lengths']['sides']
    assert [*sides['full']] == ['256', '512'] and [*sides['lstm']] == ['256', '512', '1024']


def test_memory_is_compared_with_that_of_chunks(tmp_path: Path, monkeypatch, capsys):
    path = tmp_path / 'figures.json'
    run_command(monkeypatch, '--parts', 'memory', '--lengths', '16,64,128', '--output', path)
    found = json.loads(path.read_text(encoding='utf-8'))['recurrent']['memory']['temporary_bytes']
    assert found == {'64': {'whole': 6400, 'chunks': 1280}, '128': {'whole': 12800, 'chunks': 2560}}
    assert 'grows as length^1.00' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('arguments', 'line'),
    [
        (('--rounds', 0), '--rounds is 0'),
        (('--lengths', '0'), 'length 0: it must be at least 1'),
        (('--plot', 'figure.gif'), 'figure.gif: it must end in .png or .svg'),
        (('--parts', 'cells', '--plot', 'figure.svg'), '--plot shows the parts lengths and token'),
    ],
)
def test_bad_flags_are_refused(monkeypatch, arguments: tuple, line: str):
    with pytest.raises(InputError, match=line):
        run_command(monkeypatch, *arguments)


@pytest.mark.parametrize(
    ('fields', 'figures'),
    [
        ({'program': 'call', 'side': 'ours', 'cell': 'lstm'}, {'forward', 'forward_backward', 'peak_bytes', 'name'}),
        ({'program': 'call', 'side': 'nnx', 'cell': 'gru'}, {'forward', 'forward_backward', 'peak_bytes', 'name'}),
        (
            {'program': 'call', 'side': 'layer', 'attention': 'window(2)'},
            {'forward', 'forward_backward', 'peak_bytes', 'name'},
        ),
        ({'program': 'token', 'cell': 'sru2'}, {'token', 'state_bytes'}),
    ],
    ids=lambda one: one.get('side', one['program']) if isinstance(one, dict) else '',
)
@pytest.mark.lenient_promotion
def test_our_sides_run(fields: dict, figures: set):
    found = benchmark.measure_shape(TINY | fields)
    assert set(found) == figures and all(len(found[name]) == 1 for name in figures & {'forward', 'token'})


def test_chunks_take_less_temporary_memory():
    shape = {'program': 'memory', 'cell': 'lstm', 'rows': 2, 'length': 512, 'width': 16}
    whole, chunks = (benchmark.measure_shape(shape | {'chunk': chunk})['temporary_bytes'] for chunk in (0, 32))
    assert 0 < chunks < 0.3 * whole
