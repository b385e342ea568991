"""Tests the picture of quality against time and size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from efficient_attention.errors import InputError
from scripts.benchmarks.plot_compression import parse_scores, plot_figure, read_scored_models
from tests.scripts.called import refusal_of

ROOT = Path(__file__).resolve().parents[3]
SIDES = {'whole': (681.7, 90_000_000), 'int8': (598.0, 23_000_000), 'torch': (558.0, 90_000_000)}


@pytest.fixture
def figures(tmp_path: Path) -> Path:
    measured = {side: {'milliseconds': time, 'parameter_bytes': size} for side, (time, size) in SIDES.items()}
    (tmp_path / 'figures.json').write_text(json.dumps({'compress': {'infer': {'128': {'32': measured}}}}))
    return tmp_path / 'figures.json'


def test_sides_with_scores_are_drawn(figures: Path):
    sides = read_scored_models(figures, 128, 32, parse_scores(['whole=86.4', 'int8=86.0', 'int8=86.2']))
    assert sides['int8'] == {'qualities': [86.0, 86.2], 'milliseconds': 598.0, 'bytes': 23_000_000}
    left, right = plot_figure(sides, '32 x 128 tokens', 'accuracy, %').axes
    assert [text.get_text() for text in left.texts] == ['whole', 'int8'] == [text.get_text() for text in right.texts]
    assert left.texts[1].xy == (598.0, pytest.approx(86.1)) and right.texts[0].xy[0] == pytest.approx(90e6 / 2**20)


def test_figures_of_the_benchmark_are_read():
    [whole] = read_scored_models(ROOT / 'docs/results/data/compression.json', 128, 32, {'whole': [86.4]}).values()
    assert whole['milliseconds'] > 100 and whole['bytes'] == 90_261_504


@pytest.mark.parametrize(
    'quality, length, message',
    [
        (['whole'], 128, "--quality has 'whole'; entries are as 3x384=84.5"),
        (['half=80'], 128, "--quality has 'half'; measured are whole, int8, torch"),
        (['whole=86'], 384, 'figures.json: no figures of 32 rows of 384 tokens; `benchmark.py compress'),
    ],
)
def test_bad_input_is_one_line(figures: Path, quality: list[str], length: int, message: str):
    with pytest.raises(InputError, match=message):
        read_scored_models(figures, length, 32, parse_scores(quality))


def test_the_command_writes_a_picture(figures: Path):
    output = figures.with_name('out.png')
    command = [
        sys.executable,
        'scripts/benchmarks/plot_compression.py',
        str(figures),
        str(output),
        '--quality',
        'whole=86.4',
    ]
    done = subprocess.run(command, cwd=ROOT, check=True, env={'PYTHONPATH': str(ROOT)}, capture_output=True, text=True)
    assert json.loads(done.stdout)['whole']['qualities'] == [86.4] and output.read_bytes().startswith(b'\x89PNG')


def test_a_picture_of_another_kind_is_refused(figures: Path, monkeypatch: pytest.MonkeyPatch, capfd):
    words = (str(figures), str(figures.with_name('out.gif')), '--quality', 'whole=86.4')
    said = refusal_of('benchmarks/plot_compression.py', *words, monkeypatch=monkeypatch, capfd=capfd)
    assert 'it must end in .png or .svg' in said
