"""The attention benchmark's arithmetic: growth, ratios, crossovers, and what is left out; nothing is timed here."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from scripts import attention_benchmark as benchmark

CHILD_COST = {'full': lambda length: 1e-7 * length**2, 'window': lambda length: 4e-4 * length, 'sdpa': lambda _: 1.0}


def fake_run(command: list[str], shape: dict[str, Any]) -> dict[str, Any]:
    """Figures by formula, in place of a process."""
    assert command[-1].endswith('peers/attention.py' if shape['peer'] else 'measure_attention.py')
    seconds = CHILD_COST[shape['name']](shape['length'])
    return {
        'name': shape['name'],
        'forward': [seconds / 3],
        'forward_backward': [seconds, 2 * seconds, seconds / 2],
        'peak_bytes': 100 * shape['length'],
    }


def measure(**changes: Any) -> dict[str, Any]:
    fields = {'lengths': [1024, 2048, 4096, 8192, 16384], 'sides': ['full', 'window', 'sdpa'], 'rounds': 2, 'steps': 3}
    arguments = argparse.Namespace(**(fields | {'max_seconds': 10.0, 'plot': None} | changes))
    return benchmark.measure(arguments, *benchmark.commands(['python'], Path('peer')), fake_run)


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
    assert list(report['sides']['full']) == [1024, 2048, 4096, 8192]  # 16,384 promises 27 s
    assert list(report['sides']['window'])[-1] == 16384


def test_every_peer_is_a_side_and_has_its_program(tmp_path: Path):
    source = Path('scripts/peers/attention.py').read_text(encoding='utf-8')
    for side in benchmark.SIDES.values():
        assert not side.peer or f'def {side.peer}(' in source
    measure(plot=tmp_path / 'plot.svg')
    assert 'svg' in (tmp_path / 'plot.svg').read_text(encoding='utf-8')[:500]
