"""Tests the benchmark of smaller models: its ratios, its command line, and a real measurement of each of our
programs.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from efficient_attention.errors import InputError
from scripts import benchmark as command
from scripts.benchmarks import compress as benchmark
from scripts.benchmarks import inference

TINY = {'layers': 2, 'width': 8, 'heads': 2, 'feed_forward_width': 16, 'vocab_size': 30}
WAYS = {'plain': 10.0, 'movement': 13.0, 'qat': 15.0, 'student': 5.0, 'teacher': 2.0, 'live': 7.7, 'kept': 5.5}


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    """Runs `benchmark.py compress` with figures that follow from a formula."""

    def figures_of(program: list[str], shape: dict[str, Any], allocator: str) -> dict[str, Any]:
        assert allocator == 'keep'
        if program == benchmark.CHILD:
            return {'name': 'fake', 'milliseconds': WAYS}
        is_peer = program[-1] == inference.PEER
        time = shape['rows'] * shape['model']['layers'] * (2.0 if is_peer else 1.0)
        time /= 2.0 if shape.get('quantization') or shape['model'].get('quantization') else 1.0
        found = {'name': 'fake', 'milliseconds': time, 'parameter_bytes': 2**20}
        return found | {'peak_bytes': 2**21}

    monkeypatch.setattr(command, 'run_measurement_process', figures_of)
    python = Path(__file__)  # any existing file passes the check
    monkeypatch.setattr('sys.argv', ['benchmark.py', 'compress', '--peers_python', str(python), *map(str, arguments)])
    command.main()


def test_speeds_are_of_the_whole_model(tmp_path: Path, monkeypatch, capsys):
    path = tmp_path / 'compress.json'
    sides = '3x384,int8,torch,torch_int8'
    run_command(monkeypatch, '--sides', sides, '--lengths', 128, '--rows', '1,8', '--output', path)
    found = json.loads(path.read_text(encoding='utf-8'))['compress']
    speeds = {side: one['speed'] for side, one in found['infer']['128']['8'].items()}
    assert speeds == {'whole': 1.0, '3x384': 2.0, 'int8': 2.0, 'torch': 0.5, 'torch_int8': 1.0}
    ratios = found['train']['128']['ratios']
    assert ratios == {'movement': 1.3, 'qat': 1.5, 'live': 1.1, 'kept': 1.1}
    out = capsys.readouterr().out
    assert 'int8          24.0 (24.0 to 24.0)   2.00     1.0     2.0' in out
    assert 'whole: 2.00 times as fast as torch\n' in out and 'int8: 2.00 times as fast as torch_int8\n' in out


@pytest.mark.parametrize(
    'arguments', [('--rounds', 0), ('--steps', 0), ('--lengths', 1024), ('--rows', 0), ('--sides', 'x')]
)
def test_bad_flags_are_refused(monkeypatch, arguments: tuple):
    with pytest.raises(InputError, match=arguments[0]):
        run_command(monkeypatch, *arguments)


def test_a_real_call_of_each_kind(monkeypatch):
    monkeypatch.setattr(inference, 'LEAST_SECONDS', 0.0)
    sizes = {}
    for name, fields in {'whole': {}, 'int8': {'quantization': 'int8'}, 'third': {'layer_heads': [1, 0]}}.items():
        shape = {'model': TINY | fields, 'rows': 2, 'length': 8, 'layout': 'separate'}
        found = inference.measure_shape(shape)
        assert found['milliseconds'] > 0
        sizes[name] = found['parameter_bytes']
    assert sizes['int8'] < sizes['third'] < sizes['whole']


@pytest.mark.lenient_promotion
def test_real_steps_of_each_way():
    shape = {'model': TINY | {'layers': 1}, 'student_layers': 1, 'rows': 2, 'length': 8, 'steps': 1}
    found = benchmark.measure_shape(shape)['milliseconds']
    assert set(found) == set(benchmark.WAYS) == set(WAYS) and min(found.values()) > 0.0


def test_the_table_of_the_page_is_that_of_its_figures():
    docs = Path(command.__file__).parent.parent / 'docs'
    infer = json.loads((docs / 'results/data/compression_amx.json').read_text(encoding='utf-8'))['compress']['infer']
    page = json.loads((docs / 'results/compression.json').read_text(encoding='utf-8'))
    [lines] = [one['tables'][0]['rows'] for one in page['sections'] if one['title'] == 'Speed and memory with AMX']
    names = {'PyTorch float32': 'torch', 'PyTorch dynamic int8': 'torch_int8'}
    for name, *cells in lines:
        side = names.get(name, name.strip('`'))
        measured = [infer[length][rows][side] for length in ('128', '384') for rows in ('1', '8', '32')]
        for cell, one in zip(cells, measured, strict=False):
            number = one['milliseconds'] if side == 'whole' else one['speed']
            digits = 0 if side == 'whole' else len(cell.partition('.')[2])
            assert cell.removesuffix(' ms').replace(',', '') == f'{number:.{digits}f}', (name, cell)
        assert cells[6] == f'{infer["384"]["8"][side]["peak_bytes"] / 2**20:.0f}', name
    assert len(lines) == len(infer['128']['1']) == 10
