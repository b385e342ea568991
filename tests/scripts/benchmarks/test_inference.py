"""Tests the inference benchmark: its ratios, its command line, and real measurements of our model and of plain Flax
NNX.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from efficient_attention.errors import InputError
from scripts import benchmark as command
from scripts.benchmarks import inference as benchmark

TINY = {'layers': 2, 'width': 8, 'heads': 2, 'feed_forward_width': 16, 'vocab_size': 30}
MILLISECONDS = {'separate': 8.0, 'stacked': 24.0, 'plain': 10.0}


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    """Runs `benchmark.py infer` with figures that follow from a formula."""

    def figures_of(program: list[str], shape: dict[str, Any], allocator: str) -> dict[str, Any]:
        assert allocator == 'keep' and shape['model'] in benchmark.MODELS.values()
        if program[-1] == benchmark.PEER:
            return {'name': 'fake', 'milliseconds': 16.0 * shape['rows']}
        time = MILLISECONDS[shape['layout']] * shape['rows']
        return {'name': 'fake', 'milliseconds': time, 'temporary_bytes': 2**20, 'compile_seconds': 0.52}

    monkeypatch.setattr(command, 'run_measurement_process', figures_of)
    python = Path(__file__)  # any existing file passes the check
    monkeypatch.setattr('sys.argv', ['benchmark.py', 'infer', '--peers_python', str(python), *map(str, arguments)])
    command.main()


def test_the_ratio_is_to_the_faster_peer(tmp_path: Path, monkeypatch, capsys):
    path = tmp_path / 'infer.json'
    run_command(monkeypatch, '--models', '4x312', '--rows', '1,8', '--output', path)
    rows = json.loads(path.read_text(encoding='utf-8'))['infer']['models']['4x312']
    assert {count: row['ratio'] for count, row in rows.items()} == {'1': 0.8, '8': 0.8}
    assert rows['8']['stacked']['milliseconds'] == 3 * rows['8']['ours']['milliseconds']
    out = capsys.readouterr().out
    assert '8.0 (8.0 to 8.0), 1.0 MiB, 0.5 s' in out and '16.0 (16.0 to 16.0) ' in out and '0.80 (0.80 to 0.80)' in out


@pytest.mark.parametrize('arguments', [('--rounds', 0), ('--length', 1024), ('--rows', 0), ('--models', 'gpt')])
def test_bad_flags_are_refused(monkeypatch, arguments: tuple):
    with pytest.raises(InputError, match=arguments[0]):
        run_command(monkeypatch, *arguments)


def test_a_real_measurement(monkeypatch):
    monkeypatch.setattr(benchmark, 'LEAST_SECONDS', 0.0)
    shape = {'model': TINY, 'rows': 2, 'length': 8}
    found = [benchmark.measure_shape(shape | {'layout': layout}) for layout in ('separate', 'plain')]
    assert all(one['milliseconds'] > 0 and one['temporary_bytes'] > 0 and one['program_lines'] > 0 for one in found)
