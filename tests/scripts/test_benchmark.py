"""Tests the command line of the benchmarks, and the processes that they start."""

import json
import subprocess
import sys

import pytest

from efficient_attention.commands.command_line import run_command
from efficient_attention.errors import InputError
from efficient_attention.processes import allocator
from scripts import benchmark
from scripts.benchmarks import input as input_benchmark
from scripts.benchmarks import step


def test_both_sides_get_the_allocator_of_our_entry_points():
    outside = dict(setting.removeprefix('glibc.malloc.').split('=') for setting in benchmark.KEEP_MEMORY.split(':'))
    inside = {name.removeprefix('M_').lower(): str(value) for name, (_, value) in allocator._SETTINGS.items()}
    assert outside == inside


def test_a_child_gets_the_shape_and_the_allocator(monkeypatch):
    figures = "{'seconds': [1.0, 2.0, 4.0], 'shape': json.loads(sys.argv[1]), 'glibc': os.environ['GLIBC_TUNABLES']}"
    program = f"import json, os, sys; print('noise'); print(json.dumps({figures}))"
    monkeypatch.setattr('sys.argv', ['benchmark.py', 'input', '--steps', '7', '--length', '512'])
    _, _, options = benchmark.read_command_line()
    found = step.add_tokens_per_second(
        benchmark.run_measurement_process(
            [sys.executable, '-c', program], step.benchmark_shape(512, options.steps, {}), options.allocator
        )
    )
    assert found['tokens_per_second'] == 4096 / 2
    assert found['glibc'] == benchmark.KEEP_MEMORY
    assert (found['shape']['rows'], found['shape']['masked'], found['shape']['steps']) == (8, 77, 7)


def test_the_process_that_starts_the_others_loads_no_models():
    # Loaded models would count in the peak memory of child processes. Only arena loads JAX, for the names of its cells.
    files = [file for file in benchmark.FILES.values() if file != 'arena']
    imports = ', '.join(f'scripts.benchmarks.{file}' for file in files)
    said = "print([name for name in ('jax', 'flax', 'optax', 'orbax') if name in sys.modules])"
    program = f'import sys, scripts.benchmark, {imports}; {said}; import scripts.benchmarks.arena; {said}'
    found = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, cwd=benchmark.ROOT)
    assert found.stdout.splitlines() == ['[]', "['jax']"], found.stderr


def test_a_failed_child_ends_the_run_with_its_message():
    with pytest.raises(SystemExit, match='no torch here'):
        benchmark.run_measurement_process([sys.executable, '-c', "raise ValueError('no torch here')"], {}, 'keep')


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
    monkeypatch.setattr(input_benchmark, 'measure', lambda options, run: iter([{'length': options.length}]))  # noqa: ARG005
    benchmark.main()
    figures = json.loads((tmp_path / 'figures.json').read_text())
    assert figures['length'] == 128
    assert figures['machine']['cores'] >= 1
