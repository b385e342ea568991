"""Tests the attention benchmark's arithmetic: growth, ratios, crossovers and omitted sizes. No time is measured
here.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from efficient_attention.attention.parsing import parse_mechanism
from efficient_attention.attention.registry import NAMES, load_implementation
from efficient_attention.errors import InputError
from scripts import benchmark as command
from scripts.benchmarks import attention as benchmark

CHILD_COST = {'full': lambda length: 1e-7 * length**2, 'window': lambda length: 4e-4 * length, 'sdpa': lambda _: 1.0}


def fake_run(command: list[str], shape: dict[str, Any]) -> dict[str, Any]:
    """Replaces a measuring process: returns figures that follow from a formula."""
    assert command[-1].endswith('peers/attention.py' if shape['peer'] else 'benchmarks/attention.py')
    seconds = CHILD_COST[shape['name']](shape['length'])
    return {
        'name': shape['name'],
        'forward': [seconds / 3],
        'forward_backward': [seconds, 2 * seconds, seconds / 2],
        'peak_bytes': 100 * shape['length'],
    }


def measure(**changes: Any) -> dict[str, Any]:
    return list(reports(**changes))[-1]


def reports(run: benchmark.Run = fake_run, **changes: Any) -> Iterator[dict[str, Any]]:
    fields = {'lengths': [1024, 2048, 4096, 8192, 16384], 'sides': ['full', 'window', 'sdpa'], 'rounds': 2, 'steps': 3}
    options = SimpleNamespace(**(fields | {'max_seconds': 10.0, 'plot': None, 'peers_python': Path('peer')} | changes))
    return benchmark.measure(options, run)


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    """Runs `benchmark.py attention` with figures that follow from a formula."""
    monkeypatch.setattr(command, 'run_measurement_process', lambda program, shape, allocator: fake_run(program, shape))  # noqa: ARG005
    monkeypatch.setattr('sys.argv', ['benchmark.py', 'attention', *map(str, arguments)])
    command.main()


def test_growth_ratios_and_crossover_follow_from_the_figures():
    report = measure()
    assert report['sides']['window'][4096]['forward_backward'] == pytest.approx(4e-4 * 4096)
    assert report['exponents']['full']['forward_backward'] == pytest.approx(2.0)
    assert report['exponents']['window']['forward_backward'] == pytest.approx(1.0)
    assert report['exponents']['window']['peak_bytes'] == pytest.approx(1.0)
    assert report['crossovers'] == {'window': 4096}
    rows = {(row['ours'], row['other'], row['length']): row for row in report['comparisons']}
    assert rows['window', 'sdpa', 2048]['forward_backward'] == pytest.approx(4e-4 * 2048)


def test_a_side_stops_where_it_promises_to_take_too_long():
    report = measure()
    assert list(report['sides']['full']) == [1024, 2048, 4096, 8192]  # 16,384 tokens would take about 27 s
    assert list(report['sides']['window'])[-1] == 16384


def test_every_peer_is_a_side_and_has_its_program(tmp_path: Path):
    source = Path('scripts/benchmarks/peers/attention.py').read_text(encoding='utf-8')
    listed = source[source.index('\nPEERS = {') :]
    for side in benchmark.SIDES.values():
        assert not side.peer or f'def {side.peer}(' in source and f'        {side.peer},\n' in listed
    measure(plot=tmp_path / 'plot.svg')
    assert 'svg' in (tmp_path / 'plot.svg').read_text(encoding='utf-8')[:500]


def test_every_package_that_peers_import_is_pinned():
    tree = ast.parse(Path('scripts/benchmarks/peers/attention.py').read_text(encoding='utf-8'))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    packages = {name.split('.')[0].replace('_', '-') for name in imported} - set(sys.stdlib_module_names)
    pinned = re.findall(r'^([\w-]+)==', Path('requirements/peers.txt').read_text(encoding='utf-8'), re.MULTILINE)
    assert {'torch', 'linformer'} <= packages <= set(pinned)


def test_every_mechanism_is_measured_and_its_causal_form_beside_it():
    mechanisms = {side.name: parse_mechanism(side.mechanism.format(length=64, root=8)) for side in benchmark.OURS}
    itself = {found.kind for found in map(load_implementation, NAMES) if found.kind().key_access.own_row}
    assert {type(mechanism) for mechanism in mechanisms.values()} == itself
    for name in ('favor', 'linear'):
        assert not mechanisms[name].is_causal and mechanisms[f'{name}_causal'].is_causal
        assert type(mechanisms[name]) is type(mechanisms[f'{name}_causal'])


def test_without_steps_there_is_temporary_memory_alone(capsys):
    def run(command: list[str], shape: dict[str, Any]) -> dict[str, Any]:
        assert shape['steps'] == 0 and command[-1].endswith('benchmarks/attention.py')
        return {'forward_backward_temporary_bytes': shape['length'] * 2**20}

    report = measure(run=run, steps=0, sides=['full', 'window'], lengths=[16, 8])
    assert report['temporary_bytes'] == {side: {8: 8 * 2**20, 16: 16 * 2**20} for side in ('full', 'window')}
    assert 'full: temporary memory grows as length^1.00' in capsys.readouterr().out


def test_each_length_is_reported_when_it_is_done():
    counts = [[len(by_length) for by_length in report['sides'].values()] for report in reports(lengths=[64, 128, 32])]
    assert counts == [[1, 1, 1], [2, 2, 2], [3, 3, 3]]


def test_a_run_that_is_cut_leaves_the_lengths_before_and_they_can_be_plotted(tmp_path: Path, monkeypatch, capsys):
    figures, plot = tmp_path / 'figures.json', tmp_path / 'plot.svg'

    def cut(program: list[str], shape: dict[str, Any], allocator: str) -> dict[str, Any]:  # noqa: ARG001
        if shape['length'] == 4096:
            raise KeyboardInterrupt
        return fake_run(program, shape)

    options = ['--lengths', '1024,2048,4096', '--sides', 'full,window', '--output', str(figures)]
    monkeypatch.setattr('sys.argv', ['benchmark.py', 'attention', *options])
    monkeypatch.setattr(command, 'run_measurement_process', cut)
    with pytest.raises(KeyboardInterrupt):
        command.main()
    kept = json.loads(figures.read_text(encoding='utf-8'))
    assert kept['machine'] and list(kept['attention']['sides']['window']) == ['1024', '2048']
    capsys.readouterr()
    run_command(monkeypatch, '--from_json', figures, '--plot', plot)
    printed = capsys.readouterr().out
    assert '2048 window' in printed and 'window: never faster here' in printed
    assert 'svg' in plot.read_text(encoding='utf-8')[:500]
    assert not list(tmp_path.glob('*.tmp'))


def test_a_file_tells_the_same_as_the_run_that_wrote_it(tmp_path: Path, monkeypatch, capsys):
    figures = tmp_path / 'figures.json'
    lengths = ['--lengths', '1024,2048,4096,8192']
    run_command(monkeypatch, *lengths, '--sides', 'full,window', '--output', figures)
    said = capsys.readouterr().out
    run_command(monkeypatch, '--from_json', figures)
    assert capsys.readouterr().out == said[said.index(' length side') :]


@pytest.mark.parametrize(
    'text, message',
    [
        (None, 'No such file'),
        ('{', 'holds no figures'),
        ('{"lengths": {}}', 'holds no figures'),
        ('{"attention": {"sides": {"full": {"64": {"forward": 1.0}}}}}', 'holds no figures'),
        ('{"attention": {"sides": []}}', 'holds no figures'),
    ],
)
def test_a_file_without_figures_is_bad_input(text, message, tmp_path: Path, monkeypatch):
    path = tmp_path / 'figures.json'
    if text is not None:
        path.write_text(text, encoding='utf-8')
    with pytest.raises(InputError, match=f'figures.json: .*{message}'):
        run_command(monkeypatch, '--from_json', path)


@pytest.mark.parametrize(
    'options, message',
    [
        (['--lengths', '0'], 'length 0: it must be at least 1'),
        (['--plot', 'plot.txt'], '--plot plot.txt: it must end in .png or .svg'),
        (['--output', 'nowhere/figures.json'], 'nowhere/figures.json: there is no folder nowhere'),
        (['--steps', '0', '--sides', 'full,sdpa'], '--steps 0 only compiles: give --sides without peers'),
        (['--from_json', 'a.json', '--rounds', '2'], '--rounds has no effect with --from_json'),
        (['--from_json', 'a.json', '--output', 'b.json'], '--output has no effect with --from_json'),
    ],
)
def test_what_would_show_after_hours_is_refused_at_once(options: list[str], message: str, monkeypatch):
    with pytest.raises(InputError, match=re.escape(message)):
        run_command(monkeypatch, *options)
