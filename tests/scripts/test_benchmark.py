"""The benchmark's arithmetic and its command line."""

import json

import pytest

from efficient_attention.commands.command_line import run_command
from efficient_attention.errors import InputError
from efficient_attention.processes import allocator
from scripts import benchmark


def child(rate, peak=100):
    return {
        'name': 'one',
        'parameters': 3,
        'tokens_per_second': rate,
        'peak_bytes': peak,
        'baseline_bytes': 1,
        'seconds': [1.0],
    }


def test_ratios_compare_processes_of_the_same_round():
    runs = {'ours': [child(10), child(30), child(20)], 'peer': [child(10), child(15), child(40)]}
    result = benchmark.compare(runs)
    assert result['ours']['tokens_per_second'] == 20
    assert result['ours']['range'] == [10, 30]
    assert result['ratio'] == 1.0
    assert result['ratio_range'] == [0.5, 2.0]


def test_a_row_for_each_side_and_what_unrolling_gains(capsys):
    runs = {
        'ours': [child(10) | {'first_seconds': 7.5}],
        'scan': [child(5) | {'first_seconds': 3.25}],
        'peer': [child(8)],
    }
    benchmark.print_comparison(128, benchmark.compare(runs))
    ours, scan, peer, ratio, unrolled = capsys.readouterr().out.splitlines()
    assert '7.5' in ours and '3.25' in scan and peer.split()[1] == 'peer' and 'ratio 1.25' in ratio
    assert unrolled.split()[1] == '2.00'


def test_both_sides_get_the_allocator_of_our_entry_points():
    outside = dict(setting.removeprefix('glibc.malloc.').split('=') for setting in benchmark.KEEP_MEMORY.split(':'))
    inside = {name.removeprefix('M_').lower(): str(value) for name, (_, value) in allocator._SETTINGS.items()}
    assert outside == inside


def test_a_child_gets_the_shape_and_the_allocator(monkeypatch):
    figures = "{'seconds': [1.0, 2.0, 4.0], 'shape': json.loads(sys.argv[1]), 'glibc': os.environ['GLIBC_TUNABLES']}"
    program = f"import json, os, sys; print('noise'); print(json.dumps({figures}))"
    monkeypatch.setattr('sys.argv', ['benchmark.py', 'input', '--steps', '7', '--length', '512'])
    found = benchmark.run_child([benchmark.sys.executable, '-c', program], benchmark.read_command_line()[1], 512)
    assert found['tokens_per_second'] == 4096 / 2
    assert found['glibc'] == benchmark.KEEP_MEMORY
    assert (found['shape']['rows'], found['shape']['masked'], found['shape']['steps']) == (8, 77, 7)


def test_a_failed_child_ends_the_run_with_its_message(monkeypatch):
    monkeypatch.setattr('sys.argv', ['benchmark.py', 'input'])
    _, options = benchmark.read_command_line()
    with pytest.raises(SystemExit, match='no torch here'):
        benchmark.run_child([benchmark.sys.executable, '-c', "raise ValueError('no torch here')"], options, 128)


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['step', '--lengths', '100'], 'length 100'),
        (['step', '--peers_python', 'nowhere/python'], 'run `make peers` first, or give --peers_python'),
        (['input', '--length', '4'], 'length 4'),
        (['memory', '--choices', '{}'], "memory: Unknown command line flag 'choices'"),
        (['--steps', '3', 'step'], "'--steps' is no command; known: step, input,"),
        ([], 'name a command: step, input,'),
    ],
)
def test_bad_arguments_are_one_line_and_code_2(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr('sys.argv', ['benchmark.py', *arguments])
    with pytest.raises(SystemExit) as exit_:
        run_command(benchmark.main)
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith('error: ') and message in error and error.count('\n') == 1


def test_an_unknown_source_is_bad_input(monkeypatch):
    monkeypatch.setattr('sys.argv', ['benchmark.py', 'input', '--source', 'nonsense:x'])
    with pytest.raises(InputError, match='nonsense:x'):
        benchmark.main()


def test_figures_are_json(monkeypatch, tmp_path):
    monkeypatch.setattr('sys.argv', ['benchmark.py', 'input', '--output', str(tmp_path / 'figures.json')])
    monkeypatch.setattr(benchmark, 'measure_input', lambda options: iter([{'length': options.length}]))
    benchmark.main()
    figures = json.loads((tmp_path / 'figures.json').read_text())
    assert figures['length'] == 128
    assert figures['machine']['cores'] >= 1
