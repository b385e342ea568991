"""Tests the text-to-text benchmark: its ratios, its command line, and real measurements of our programs on a tiny
T5.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from efficient_attention.errors import InputError
from scripts import benchmark as command
from scripts.benchmarks import text_to_text as benchmark

TINY = benchmark.WRITER | {'layers': 1, 'decoder_layers': 1, 'width': 8, 'heads': 2, 'head_width': 4}
TINY |= {'feed_forward_width': 16, 'vocab_size': 32, 'relative_buckets': 8}


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> list[dict[str, Any]]:
    """Runs `benchmark.py text_to_text` with figures that follow from a formula; returns the measured shapes."""
    shapes = []

    def figures_of(program: list[str], shape: dict[str, Any], allocator: str) -> dict[str, Any]:
        is_ours = program == benchmark.CHILD
        assert allocator == 'keep' and (is_ours or shape['program'] != 'write')
        shapes.append(shape)
        times = {'seconds': [1.0, 9.0, 2.0], 'cpu_seconds': [1.0] * 3} if is_ours else {'seconds': [3.0, 3.0, 3.0]}
        times = {'cpu_seconds': [1.5] * 3, 'units': 60, 'first_seconds': 7.0} | times
        made = {'made': ['a', 'b'] if is_ours else ['a', 'c']} if 'folder' in shape else {}
        return {'name': 'fake', 'baseline_bytes': 1, 'peak_bytes': 110 if is_ours else 100} | times | made

    monkeypatch.setattr(command, 'run_measurement_process', figures_of)
    python = Path(__file__)  # any existing file passes the check
    monkeypatch.setattr(
        'sys.argv', ['benchmark.py', 'text_to_text', '--peers_python', str(python), *map(str, arguments)]
    )
    command.main()
    return shapes


def test_figures_are_written_with_their_ratios(tmp_path: Path, monkeypatch, capsys):
    path = tmp_path / 'figures.json'
    shapes = run_command(monkeypatch, '--parts', 'train,greedy', '--rounds', 2, '--output', path)
    assert [shape['program'] for shape in shapes] == ['train'] * 4 + ['write'] + ['generate'] * 4
    parts = json.loads(path.read_text(encoding='utf-8'))['text_to_text']['parts']
    for part, equal in (('train', None), ('greedy', 0.5)):
        row = parts[part]
        assert (row['ratio'], row['cpu_ratio'], row['memory'], row['equal']) == (1.5, 1.5, 1.1, equal)
        assert row['ours']['units_per_second'] == 30.0 and row['peer']['units_per_second'] == 20.0
    assert '1.50 (1.50 to 1.50)' in capsys.readouterr().out


def test_a_model_and_texts_are_translated(tmp_path: Path, monkeypatch):
    (texts := tmp_path / 'texts').write_text('a\n', encoding='utf-8')
    shapes = run_command(
        monkeypatch, '--parts', 'translate', '--rounds', 1, '--model', tmp_path, '--input', texts, '--beams', 2
    )
    assert shapes[0]['run'] == str(tmp_path) and shapes[1]['folder'] == shapes[2]['folder']
    assert shapes[1]['beams'] == 2 and shapes[1]['input'] == str(texts) and shapes[1]['calls'] == 1


@pytest.mark.parametrize(
    ('arguments', 'line'),
    [
        (('--rounds', 0), '--rounds is 0'),
        (('--parts', 'sleep'), "'sleep' is unknown"),
        (('--parts', 'translate'), '--parts translate needs --model'),
        (('--parts', 'translate', '--model', '/nowhere'), '--model /nowhere: there is no such path'),
    ],
)
def test_bad_flags_are_refused(monkeypatch, arguments: tuple, line: str):
    with pytest.raises(InputError, match=line):
        run_command(monkeypatch, *arguments)


TRAINING = {'program': 'train', 'model': TINY, 'rows': 2, 'source': 5, 'target': 4, 'calls': 1}


@pytest.mark.slow
@pytest.mark.lenient_promotion
def test_a_step_of_training():
    found = benchmark.measure_shape(TRAINING)
    assert found['units'] == 18 and len(found['seconds']) == len(found['cpu_seconds']) == 1


def test_targets_are_shifted_by_the_start_symbol():
    batch = benchmark.training_batches(TRAINING)[0]
    assert batch['tokens'][:, 0].tolist() == [0, 0] and (batch['tokens'][:, 1:] == batch['targets'][:, :-1]).all()


def test_texts_of_the_asked_length(tmp_path: Path):
    shape = {'model': TINY, 'folder': str(tmp_path / 'model'), 'rows': 2, 'source': 5, 'target': 4}
    benchmark.measure_shape(shape | {'program': 'write'})
    found = benchmark.measure_shape(shape | {'program': 'generate', 'beams': 2, 'calls': 1})
    assert np.shape(found['made']) == (2, 4) and found['units'] == 8
