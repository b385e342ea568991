"""Tests the tables of pages from files of the GPU benchmark: figures, failures, losses, and parts without a file."""

import json
from pathlib import Path
from typing import Any

import pytest

from efficient_attention.errors import InputError
from scripts.benchmarks.measured_tables import measured_markdown

MACHINE = {'device': 'NVIDIA H200', 'count': 1, 'jax': '0.11.2', 'driver': '580.1', 'python': '3.12.3'}


def result(group: str, side: str, milliseconds: float, *, is_peer: bool = False, **figures: Any) -> dict[str, Any]:
    times = {'milliseconds': milliseconds, 'milliseconds_range': [milliseconds - 1, milliseconds + 1]}
    return {'group': group, 'side': side, 'is_peer': is_peer, **times, **figures}


def failure(group: str, side: str, reason: str, *, is_peer: bool = False) -> dict[str, Any]:
    return {'group': group, 'side': side, 'is_peer': is_peer, 'reason': reason}


def markdown(folder: Path, *results: dict[str, Any], **fields: Any) -> list[str]:
    """Returns the paragraphs of a file with these cases."""
    cases = {f'{one["group"]}: {one["side"]}': one for one in results}
    report = {'part': 'attention', 'machine': MACHINE, 'commit': 'abc', 'date': '2026-11-30', 'is_dry_run': False}
    path = folder / 'attention.json'
    path.write_text(json.dumps(report | {'cases': cases} | fields), encoding='utf-8')
    return measured_markdown(path).split('\n\n')


def test_a_measured_part(tmp_path: Path):
    device, table, failed_head, failed, lost_head, lost, record = markdown(
        tmp_path,
        result('causal', 'cudnn', 12.0, tflops_per_second=500.0, peak_share=0.5),
        result('causal', 'blocked', 24.0),
        result('causal', 'xla', 9.6, is_peer=True),
        result('window', 'blocked', 5.0),
        result('window', 'xla', 20.0, is_peer=True),
        failure('strided', 'blocked', 'out of memory'),
        failure('strided', 'cudnn', 'out of memory'),
        result('strided', 'xla', 30.0, is_peer=True),
    )
    assert device == 'Device: 1 NVIDIA H200, driver 580.1, jax 0.11.2. Commit: abc.'
    lines = table.split('\n')
    assert lines[0] == '| case | side | ms | range of ms | TFLOP/s | share of the peak |'
    assert lines[2] == '| causal | cudnn | 12 | 11 to 13 | 500 | 50.0 % |'
    assert lines[4] == '| causal | xla (peer) | 9.6 | 8.6 to 10.6 |  |  |' and len(lines) == 8
    assert failed_head.startswith('Cases without')
    assert failed == '- out of memory: `strided: blocked`, `strided: cudnn`'
    assert lost_head.startswith('This project loses')
    assert lost.split('\n') == [
        '- causal: cudnn against xla, 12 ms against 9.6 ms, 1.25 x the time',
        '- strided: no side has a result; xla takes 30 ms',
    ]
    assert record.startswith('```bash\n# 2026-11-30, NVIDIA H200, jax 0.11.2, commit abc\n')
    assert '--parts attention\n' in record


def test_a_part_that_loses_nothing_says_so(tmp_path: Path):
    # The second time is smaller, but the ranges overlap.
    text = markdown(tmp_path, result('causal', 'cudnn', 3.0), result('causal', 'xla', 2.0, is_peer=True))
    assert 'This project loses to no peer.' in text
    assert not any('peer' in line for line in markdown(tmp_path, result('causal', 'cudnn', 3.0)))


def test_errors_have_their_ranges(tmp_path: Path):
    errors = {'output_error': 0.002, 'output_error_range': [0.001, 0.003]}
    table = markdown(tmp_path, {'group': 'causal float16', 'side': 'dense', 'is_peer': False, **errors})[1]
    assert table.split('\n')[::2] == [
        '| case | side | error of the output | its range |',
        '| causal float16 | dense | 0.002 | 0.001 to 0.003 |',
    ]


def test_wrong_results_are_listed(tmp_path: Path):
    errors = {'output_error': 0.2, 'output_error_range': [0.1, 0.3], 'is_wrong': True}
    wrong = {'group': 'causal float16', 'side': 'dense', 'is_peer': False, **errors}
    right = {'group': 'causal float16', 'side': 'blocked', 'is_peer': False, 'output_error': 0.001}
    said = markdown(tmp_path, wrong, right)[2]
    assert said == 'Wrong results, whose errors are more than rounding: `causal float16: dense`.'


def test_a_part_without_a_file_is_not_yet_measured(tmp_path: Path):
    text = measured_markdown(tmp_path / 'decoding.json')
    assert text.startswith('Not yet measured.') and '--parts decoding\n' in text


@pytest.mark.parametrize(
    'text, message',
    [
        ('{', 'not a report of scripts/measure_gpu.py'),
        ('{"is_dry_run": false}', 'not a report of scripts/measure_gpu.py (machine)'),
        ('{"is_dry_run": true}', 'a dry run, with tiny sizes'),
    ],
)
def test_another_file_is_refused(text: str, message: str, tmp_path: Path):
    (tmp_path / 'attention.json').write_text(text)
    with pytest.raises(InputError) as error:
        measured_markdown(tmp_path / 'attention.json')
    assert message in str(error.value)
