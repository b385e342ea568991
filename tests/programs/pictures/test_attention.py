"""Tests pages of what a checkpoint reads, from the command line: encoders, decoders, and one line for bad input."""

import runpy
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import efficient_attention as ea
from tests.inference.test_generate import workdir_of
from tests.inference.tiny_checkpoint import random_text, write_checkpoint
from tests.inspection.made_attention import read_page

pytestmark = pytest.mark.lenient_promotion  # A built run has an optimizer; Optax mixes Python floats with int32.
SCRIPT = Path(__file__).resolve().parents[3] / 'scripts' / 'visualize.py'


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, tmp_path: Path):
    """Returns a function that runs the script in this process: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, 'argv', ['visualize.py', 'attention', *arguments])
        code = 0
        try:
            runpy.run_path(str(SCRIPT), run_name='__main__')
        except SystemExit as exited:
            code = exited.code
        return code, *capfd.readouterr()

    return run


@pytest.fixture(scope='module')
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp('encoder'), 'fill_mask')


def test_the_page_has_what_the_pipeline_returns(call, tmp_path: Path, encoder: Path):
    code, out, err = call('--model', str(encoder), '--text', 'the old dog', '--pair', 'a tree')
    assert code == 0 and out.splitlines()[-1] == 'attention.html' and 'Traceback' not in err
    found = read_page((tmp_path / 'attention.html').read_text(encoding='utf-8'))
    [window] = ea.pipeline('attention', encoder)(('the old dog', 'a tree'))
    [record] = found.content['windows']
    assert (record['tokens'], record['texts']) == (window['tokens'], window['texts'])
    for head in range(2):
        np.testing.assert_allclose(found.head(0, head), window['layers'][0]['weights'][head], atol=1.01 / 255)


def test_windows_of_a_long_text_are_in_one_page_and_the_page_says_so(call, tmp_path: Path, encoder: Path):
    code, _, err = call('--model', str(encoder), '--text', random_text(30), '--output', 'long.html')
    assert code == 0 and 'Warning' not in err
    content = read_page((tmp_path / 'long.html').read_text(encoding='utf-8')).content
    assert [len(window['tokens']) for window in content['windows']] == [24, 10]
    assert content['notes'] == ['The text is read in 2 windows; choose one below.']


def test_a_head_of_a_language_model_is_drawn(call, tmp_path: Path):
    run = str(workdir_of(tmp_path / 'run'))
    chosen = ['--layers', '0', '--heads', '1', '--figure', 'head.svg']
    code, out, _ = call('--model', run, '--text', 'The old', '--pair', ' dog', *chosen)
    assert code == 0 and out.splitlines()[-2:] == ['head.svg', 'attention.html']
    drawn = ET.fromstring((tmp_path / 'head.svg').read_text(encoding='utf-8'))
    assert len(drawn.findall('{http://www.w3.org/2000/svg}line')) == sum(min(place + 1, 7) for place in range(11))
    found = read_page((tmp_path / 'attention.html').read_text(encoding='utf-8')).content['windows'][0]
    assert [layer['layer'] for layer in found['layers']] == [0] and len(found['layers'][0]['heads']) == 1


@pytest.mark.parametrize(
    'arguments, said',
    [
        (['--text', ''], "the text is ''; it must not be empty"),
        (['--text', 'the dog', '--layers', '1'], 'there is no layer 1; the model has layers 0 to 0'),
        (['--text', 'the dog', '--heads', '0,2'], 'there is no head 2; the model has heads 0 to 1'),
        (['--text', 'the dog', '--megabytes', '0.01'], 'megabytes is 0.01; a page with one edge for each'),
        (['--text', 'the dog', '--figure', 'head.svg'], '--figure draws one head; name its layer and its number'),
    ],
)
def test_bad_requests_are_one_line(call, tmp_path: Path, encoder: Path, arguments: list[str], said: str):
    code, _, err = call('--model', str(encoder), *arguments)
    [line] = [line for line in err.splitlines() if 'rror' in line]
    assert code != 0 and said in line, err
    assert not (tmp_path / 'attention.html').exists()
