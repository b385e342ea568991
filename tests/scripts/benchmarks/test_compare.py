"""Tests the comparison of two outputs of a benchmark: which figures moved, and files that cannot be compared."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from efficient_attention.commands.command_line import run_command
from scripts import benchmark as command


def timed(median: float, low: float, high: float) -> dict[str, Any]:
    return {'milliseconds': median, 'milliseconds_range': [low, high], 'flops': 7.0}


def report(device: str, cases: dict[str, Any], part: str = 'attention') -> dict[str, Any]:
    return {'part': part, 'machine': {'device': device}, 'cases': cases}


OLD = report('H200', {'a': timed(2, 1, 3), 'b': timed(4, 3.9, 4.1), 'gone': timed(1, 1, 1), 'failed': timed(1, 1, 1)})
NEW = report('H200', {'a': timed(3.5, 3, 4), 'b': timed(3, 2.9, 3.1), 'new': timed(1, 1, 1), 'failed': {'reason': 'x'}})


def compare(folder: Path, old: object, new: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs `benchmark.py compare` on two reports, or on two texts."""
    for name, one in (('old', old), ('new', new)):
        (folder / name).write_text(one if isinstance(one, str) else json.dumps(one), encoding='utf-8')
    monkeypatch.setattr(sys, 'argv', ['benchmark.py', 'compare', str(folder / 'old'), str(folder / 'new')])
    run_command(command.main)


def test_only_figures_whose_ranges_do_not_overlap_have_moved(tmp_path: Path, monkeypatch, capsys):
    compare(tmp_path, OLD, NEW, monkeypatch)
    moved, counts = capsys.readouterr().out.splitlines()
    assert moved.split() == ['x', '0.750', '4', '->', '3', 'b', '/', 'milliseconds']
    assert counts.startswith('2 figures compared: 1 moved, 1 unchanged; 2 only in ')
    assert counts.endswith(f'1 only in {tmp_path}/new')


def test_other_devices_are_named(tmp_path: Path, monkeypatch, capsys):
    compare(tmp_path, OLD, NEW | {'machine': {'device': 'H100'}}, monkeypatch)
    assert 'the devices differ: H200, then H100\n' in capsys.readouterr().out


def test_tokens_per_second_count_where_no_time_is_given(tmp_path: Path, monkeypatch, capsys):
    rate = {'tokens_per_second': 10.0, 'range': [9.0, 11.0]}
    both = timed(2, 1, 3) | {'tokens_per_second': 10.0, 'tokens_per_second_range': [9.0, 11.0]}
    compare(tmp_path, {'128': {'ours': rate}, 'x': both}, {'128': {'ours': rate}, 'x': both}, monkeypatch)
    assert capsys.readouterr().out.startswith('2 figures compared: 0 moved, 2 unchanged')


def test_a_saved_output_of_another_benchmark_is_compared_with_itself(monkeypatch, capsys):
    path = str(command.ROOT / 'docs' / 'results' / 'data' / 'attention.json')
    monkeypatch.setattr(sys, 'argv', ['benchmark.py', 'compare', path, path])
    command.main()
    count = int(capsys.readouterr().out.split()[0])
    assert count > 50


@pytest.mark.parametrize(
    'old, new, message',
    [
        ('{', OLD, '/old: a name in double quotes is missing'),
        (OLD, '[1]', '/new: not a report of a benchmark'),
        (OLD, {'part': 'attention', 'machine': 3}, '/new: no figure with a range over repeats'),
        (OLD, OLD | {'part': 'decoding'}, 'has the part attention, '),
        (OLD, report('H200', {'other': timed(1, 1, 1)}), 'have no figure in common'),
    ],
)
def test_what_cannot_be_compared_is_one_line(old, new, message: str, tmp_path: Path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as exited:
        compare(tmp_path, old, new, monkeypatch)
    error = capsys.readouterr().err
    assert exited.value.code == 2 and message in error and error.count('\n') == 1


@pytest.mark.parametrize(
    'words, message', [(['nowhere', 'nowhere'], 'nowhere: No such file'), (['one'], 'compare: NEW is missing')]
)
def test_a_missing_file_is_one_line(words: list[str], message: str, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['benchmark.py', 'compare', *words])
    with pytest.raises(SystemExit):
        run_command(command.main)
    assert f'error: {message}' in capsys.readouterr().err
