"""Tests the fine-tuning benchmark: its batches, its ratios, its command line, and a real measurement of our program."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from efficient_attention.errors import InputError
from scripts import benchmark as command
from scripts.benchmarks import fine_tuning as benchmark

TINY = {'layers': 1, 'width': 8, 'heads': 2, 'feed_forward_width': 16, 'vocab_size': 30, 'dropout_rate': 0.1}


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    """Runs `benchmark.py finetune` with figures that follow from a formula."""

    def figures_of(program: list[str], shape: dict[str, Any], allocator: str) -> dict[str, Any]:
        assert allocator == 'keep' and shape['way'] in benchmark.WAYS and shape['dtype'] in benchmark.DTYPES
        is_ours = program == benchmark.CHILD
        return {'name': 'fake', 'examples_per_second': 6400 / shape['length'] * (1.5 if is_ours else 1.0)}

    monkeypatch.setattr(command, 'run_measurement_process', figures_of)
    python = Path(__file__)  # any existing file passes the check
    monkeypatch.setattr('sys.argv', ['benchmark.py', 'finetune', '--peers_python', str(python), *map(str, arguments)])
    command.main()


def test_figures_are_written_with_their_ratio(tmp_path: Path, monkeypatch, capsys):
    path = tmp_path / 'finetune.json'
    run_command(monkeypatch, '--lengths', '64,128', '--output', path)
    ways = json.loads(path.read_text(encoding='utf-8'))['finetune']['ways']
    assert {(way, length): row['ratio'] for way, rows in ways.items() for length, row in rows.items()} == {
        (way, length): 1.5 for way in ('train', 'infer') for length in ('64', '128')
    }
    assert '1.50 (1.50 to 1.50)' in capsys.readouterr().out


@pytest.mark.parametrize('arguments', [('--rounds', 0), ('--lengths', 8), ('--lengths', 1024), ('--ways', 'sleep')])
def test_bad_flags_are_refused(monkeypatch, arguments: tuple):
    with pytest.raises(InputError, match=arguments[0]):
        run_command(monkeypatch, *arguments)


def test_batches_hold_rows_of_similar_length():
    batches = np.array(benchmark.batch_row_lengths(128, 10))
    assert batches.shape == (10, 32) and batches.min() >= 16 and batches.max() <= 128
    within = np.ptp(batches, axis=1)
    assert within.max() < 40 and np.ptp(batches) > 90


@pytest.mark.lenient_promotion
@pytest.mark.parametrize(
    ('way', 'dtype'), [pytest.param('train', 'bfloat16', marks=pytest.mark.slow), ('infer', 'float32')]
)
def test_a_real_measurement(way: str, dtype: str):
    shape = {'model': TINY, 'way': way, 'dtype': dtype, 'length': 16, 'batches': [[2, 5], [9, 16]]}
    found = benchmark.measure_shape(shape)
    assert found['examples_per_second'] > 0
    batches = benchmark.padded_batches(shape)
    assert [batch['tokens'].shape for batch in batches] == [(2, 8), (2, 16)]
