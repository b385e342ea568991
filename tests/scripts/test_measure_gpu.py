"""Tests the GPU benchmark from end to end: a dry run on a CPU, without the packages that a borrowed machine lacks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from efficient_attention.commands.command_line import run_command
from scripts import measure_gpu
from scripts.benchmarks.gpu.cases import DRY, describe_machine, make_head
from tests.quick_compile import FLAGS

# A program that runs the script where these packages cannot be imported.
MISSING = ('ml_collections', 'grain', 'array_record', 'tokenizers', 'sentencepiece', 'safetensors', 'tensorboardX')
MISSING += ('matplotlib', 'PIL', 'torch', 'jaxtyping', 'beartype', 'typeguard')
BLOCKED = f"""
import runpy, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {MISSING}:
            raise ModuleNotFoundError('not here: ' + name, name=name)
sys.meta_path.insert(0, Blocker())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name='__main__')
"""


def run_script(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the script in a process without the packages of `MISSING`, outside the repository."""
    script = measure_gpu.ROOT / 'scripts' / 'measure_gpu.py'
    environment = os.environ | {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': FLAGS, 'PYTHONPATH': ''}
    command = [sys.executable, '-c', BLOCKED, str(script), *map(str, arguments)]
    return subprocess.run(command, cwd='/', env=environment, capture_output=True, text=True)


def test_a_dry_run_measures_every_part_and_the_next_call_only_what_is_missing(tmp_path: Path, monkeypatch, capsys):
    done = run_script('--dry_run', '--output', tmp_path, '--commit', 'abc')
    assert done.returncode == 0 and 'all cases are measured' in done.stdout, done.stderr
    reports = {part: json.loads((tmp_path / f'{part}.json').read_text()) for part in measure_gpu.PARTS}
    for part, report in reports.items():
        assert (report['part'], report['commit'], report['is_dry_run']) == (part, 'abc', True)
        assert report['machine']['device'] == 'cpu' and {'jax', 'jaxlib', 'flax'} <= set(report['machine'])
        ours = [case for case in report['cases'].values() if not case['is_peer']]
        own = [case for case in ours if not case['side'].startswith(('cudnn', 'mosaic'))]
        assert own and not [case for case in own if 'reason' in case], part
    check_results(reports)

    path = tmp_path / 'decoding.json'
    [name] = reports['decoding']['cases']
    path.write_text(json.dumps(reports['decoding'] | {'cases': {}}))
    monkeypatch.setenv('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
    arguments = '--dry_run', '--output', str(tmp_path), '--commit', 'abc', '--parts', 'tile_sizes,decoding'
    monkeypatch.setattr(sys, 'argv', ['measure_gpu.py', *arguments])
    measure_gpu.main()
    said = capsys.readouterr().out
    assert name in said and 'tile 16' not in said
    assert set(json.loads(path.read_text())['cases']) == {name}


def check_results(reports: dict) -> None:
    """Checks the figures of a dry run: errors, times with ranges, reasons of failures."""
    numerics, attention, training, tiles, decoding = (report['cases'] for report in reports.values())
    for name, one in numerics.items():
        assert 'reason' in one or one['gradient_error'] < (1e-6 if 'float32' in name else 1e-2), name
    assert any('grouped heads' in name for name in numerics) and not any('splash' in name for name in numerics)
    assert 'no GPU' in numerics['causal bfloat16: cudnn']['reason']
    assert 'no NVIDIA Hopper GPU' in numerics['causal bfloat16: mosaic']['reason']
    assert 'no NVIDIA Hopper GPU' in tiles['causal 64 forward+gradients: mosaic, tile 64, 2 at once']['reason']
    assert 'no NVIDIA Hopper GPU' in attention['bigbird(8, 1) 32 forward: mosaic, dropout 0.1']['reason']
    assert 'not installed: torch' in attention['lsh(8, 2, causal=True) 32 forward: PyTorch']['reason']
    timed = {**attention, **training, **tiles, **decoding}
    for name, one in timed.items():
        if 'reason' not in one:
            low, high = one['milliseconds_range']
            assert 0 < low <= one['milliseconds'] <= high and one['repeats'] == 3, name
            assert 'peak_share' not in one, 'a CPU has no known peak'
    for one in (*training.values(), *decoding.values()):
        assert one['tokens_per_second'] > 0
    assert all('plain' not in name or one['is_peer'] for name, one in training.items())
    assert {one['is_default'] for one in tiles.values() if 'reason' not in one} == {False}


def test_a_copy_without_git_needs_the_flag_commit(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
    monkeypatch.setattr(measure_gpu, 'ROOT', tmp_path)
    monkeypatch.setattr(sys, 'argv', ['measure_gpu.py', '--dry_run', '--output', str(tmp_path), '--parts', 'decoding'])
    with pytest.raises(SystemExit) as exited:
        run_command(measure_gpu.main)
    error = capsys.readouterr().err
    assert exited.value.code == 2 and 'name it with --commit' in error and error.count('\n') == 1
    assert not (tmp_path / 'decoding.json').exists()


def test_the_stand_in_of_jaxtyping_gives_the_type_of_the_array(monkeypatch):
    monkeypatch.setitem(sys.modules, 'jaxtyping', None)  # so that an import fails
    measure_gpu.replace_missing_jaxtyping()
    stand_in = sys.modules['jaxtyping']
    assert stand_in.Float[int, 'B L'] is int and (stand_in.Shaped[int, ''] | None) == (int | None)
    assert not hasattr(stand_in, '__path__')


def test_a_file_of_other_code_is_refused_before_any_case_runs(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
    head = make_head('decoding', describe_machine(), 'abc', '0123', DRY)
    (tmp_path / 'decoding.json').write_text(json.dumps(head | {'cases': {}}))
    arguments = ['--dry_run', '--output', str(tmp_path), '--commit', 'def', '--parts', 'numerics,decoding']
    monkeypatch.setattr(sys, 'argv', ['measure_gpu.py', *arguments])
    with pytest.raises(SystemExit) as exited:
        run_command(measure_gpu.main)
    error = capsys.readouterr().err
    assert exited.value.code == 2 and "measured with code '0123' instead of" in error and error.count('\n') == 1
    assert not (tmp_path / 'numerics.json').exists()


@pytest.mark.parametrize(
    'arguments, message',
    [
        (['--minutes', '0'], '--minutes 0.0: it must be above 0'),
        (['--minutes', 'many'], "'many' is not a number"),
        (['--parts', 'speed'], "'speed' is unknown; known: numerics, attention"),
    ],
)
def test_bad_arguments_are_one_line(arguments: list[str], message: str, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['measure_gpu.py', *arguments])
    with pytest.raises(SystemExit) as exited:
        run_command(measure_gpu.main)
    error = capsys.readouterr().err
    assert exited.value.code == 2 and message in error and error.count('\n') == 1
