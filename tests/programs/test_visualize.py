"""Tests pictures of patterns from the command line: the files, the output, and one line for bad input."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from efficient_attention.attention.parsing import PATTERNS, parse_pattern
from efficient_attention.programs import visualize

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture):
    """Returns a function that runs the script in this process: exit code, output, errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, 'argv', ['visualize.py', *arguments])
        code = 0
        try:
            runpy.run_path(str(ROOT / 'scripts' / 'visualize.py'), run_name='__main__')
        except SystemExit as exited:
            code = exited.code
        return code, *capfd.readouterr()

    return run


def test_a_pattern_is_drawn_and_described(call, tmp_path: Path):
    out_file = tmp_path / 'new' / 'pattern.png'
    code, out, err = call('pattern', 'causal & window(8)', '--length', '64', '--tile', '8', '--output', str(out_file))
    assert (code, err) == (0, '')
    lines = out.splitlines()
    assert lines[0] == 'causal & window(8)' and lines[-1] == str(out_file)
    assert lines[1] == '▓' + ' ·' * 31 and len(lines) == 1 + 32 + 3 + 1
    assert lines[-3:-1] == ['tiles of 8 kept: 15 of 64 (23.438%), 0 of them need no mask', lines[-2]]
    assert imread(out_file).shape[0] > 300


@pytest.mark.parametrize(
    'text, length, heads', [('per_head(causal, strided(8))', 64, 4), ('bigbird(16, 1)', 4096, 6), ('full', 1, 1)]
)
def test_heads_and_long_or_short_patterns_are_drawn(call, tmp_path: Path, text: str, length: int, heads: int):
    out_file = tmp_path / 'pattern.png'
    code, out, err = call('pattern', text, '--length', str(length), '--heads', str(heads), '--output', str(out_file))
    assert (code, err) == (0, '') and out_file.stat().st_size > 3000
    assert ('head 2' in out) == (heads > 1)
    assert ('the picture shows 4 of 6 different heads' in out) == (heads == 6)


def test_each_pass_in_another_order_has_its_panel():
    found = visualize.pattern_panels(parse_pattern('sparse_strided(8)'), 64, 8, '')
    assert [caption for _, caption in found] == ['natural order', 'pass 2: ordered by position mod 8']
    natural, ordered = (shades for shades, _ in found)
    mask = parse_pattern('sparse_strided(8)')(np.arange(64)[:, None], np.arange(64)[None])
    # the panel shows every pair, whichever pass computes it
    np.testing.assert_array_equal(natural >= visualize.shades.PARTIAL, mask)
    assert (natural == visualize.ORDERED).sum() == (ordered >= visualize.shades.PARTIAL).sum() > 0


def test_the_gallery_shows_every_name(call, tmp_path: Path):
    shown = ' '.join(visualize.GALLERY)
    # per_head combines several patterns
    assert not [name for name in PATTERNS if name not in shown and name != 'per_head']
    code, out, _ = call('gallery', '--output', str(tmp_path / 'gallery.png'))
    assert (code, out) == (0, f'{tmp_path / "gallery.png"}\n')
    assert imread(tmp_path / 'gallery.png').shape == imread(ROOT / 'docs' / 'images' / 'patterns.png').shape


@pytest.mark.parametrize(
    'arguments, line',
    [
        (['windw(3)'], "attention 'windw(3)': unknown name 'windw'; did you mean window? known: bigbird, block"),
        (['causal', '--length', '0'], '--length is 0; it must be at least 1'),
        (['causal', '--tile', '-1'], '--tile is -1; it must be at least 1'),
        (
            ['per_head(full, causal)', '--heads', '3'],
            'PerHead(Full(), Causal()): 3 heads do not divide over',
        ),
        (['block(0)'], "attention 'block(0)': Block: size is 0; it must be at least 1"),
    ],
)
def test_bad_input_is_one_line(call, arguments: list[str], line: str):
    code, out, err = call('pattern', *arguments)
    assert (code, out) == (2, '') and err.startswith(f'error: {line}') and err.count('\n') == 1


def test_an_alignment_needs_a_model_and_a_text(call):
    assert (
        call('alignment', 'a dog')[2]
        == 'error: alignment: --model is missing, such as --model runs/quickstart; --help lists all flags\n'
    )
    code, _, err = call('alignment', '--model', 'no_such_run')
    assert code == 2 and err.startswith('error: alignment: ') and 'TEXT' in err


def test_a_place_that_cannot_be_written_is_one_line(call, tmp_path: Path):
    (tmp_path / 'file').write_text('', encoding='utf-8')
    code, _, err = call('pattern', 'full', '--length', '8', '--output', str(tmp_path / 'file' / 'x.png'))
    assert code == 2 and 'cannot be written (File exists)' in err and err.count('\n') == 1
