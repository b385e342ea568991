"""Tests text generated from the command line: the output, when it is printed, and one line for bad input."""

import runpy
import sys
from pathlib import Path

import pytest

from tests.inference.test_generate import workdir_of

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.lenient_promotion  # building a run creates its optimizer


@pytest.fixture(scope='module')
def workdir(tmp_path_factory) -> Path:
    """Returns the workdir of a byte model that has taken no steps."""
    return workdir_of(tmp_path_factory.mktemp('generate'), **{'data.units': 'bytes', 'data.vocab_size': 256})


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, workdir: Path):
    """Returns a function that runs the script in this process: exit code, output, errors."""

    def run(*arguments: str, **options: str) -> tuple[int, str, str]:
        named = {'workdir': str(workdir), 'prompt': 'Größe ', 'max_tokens': '8'} | options
        flags = [word for name, value in named.items() for word in (f'--{name}', value)]
        monkeypatch.setattr(sys, 'argv', ['generate.py', *flags, *arguments])
        code = 0
        try:
            runpy.run_path(str(ROOT / 'scripts' / 'generate.py'), run_name='__main__')
        except SystemExit as exited:
            code = exited.code
        return code, *capfd.readouterr()

    return run


def test_the_text_begins_with_the_prompt_and_follows_from_the_seed(call):
    code, first, err = call()
    assert (code, err) == (0, '') and first.startswith('Größe ') and first.endswith('\n')
    assert 8 >= len(first) - len('Größe \n') > 0  # a text has at most as many characters as bytes
    assert call()[1] == first != call(seed='1')[1]
    greedy = call(temperature='0')[1]
    assert greedy == call(top_k='1', seed='5')[1] == call(top_p='1e-6', seed='7', checkpoint='0')[1]


def test_parts_are_printed_as_they_are_made(call, monkeypatch):
    printed = []
    monkeypatch.setattr('builtins.print', lambda *parts, **options: printed.append((parts, options)))
    assert call(max_tokens='17')[0] == 0
    assert [options for _, options in printed] == [{'end': '', 'flush': True}] * 5 + [{}]


BAD = {  # option: the error line; {0} is the workdir
    'workdir={0}/none': '{0}/none is no folder; names of a hub are not downloaded',
    'prompt=': 'the prompt is empty; a language model goes on with at least one token',
    'temperature=-1': 'temperature is -1.0; it must be at least 0',
    'top_k=-2': 'top_k is -2; it must be at least 0',
    'top_p=0': 'top_p is 0.0; it must be above 0 and at most 1',
    'max_tokens=0': 'max_tokens is 0; it must be at least 1',
    'max_tokens=99': 'the prompt has 8 tokens and the model has 32 positions: max_tokens can be 25 at',
    'seed=-1': 'seed is -1; it must be from 0 to 2147483647',
    'checkpoint=7': 'there is no checkpoint of step 7 in {0}/checkpoints; kept steps: 0',
}


@pytest.mark.parametrize('option, line', BAD.items(), ids=BAD)
def test_bad_input_is_one_line(call, workdir: Path, option: str, line: str):
    name, _, value = option.format(workdir).partition('=')
    code, out, err = call(**{name: value})
    assert (code, out) == (2, '') and err.startswith(f'error: {line.format(workdir)}') and err.count('\n') == 1


def test_a_beam_search_prints_each_text_behind_its_log_probability(call):
    code, out, err = call(beams='3', best='2', max_tokens='4')
    lines = out.splitlines()
    assert (code, err) == (0, '') and len(lines) >= 2
    first, text = out.split('\t')[:2]
    assert float(first) < 0 and text.startswith('Größe ')


@pytest.mark.parametrize(
    'options, line',
    [
        ({'beams': '2', 'top_p': '0.5'}, '--top_p is 0.5; nothing is sampled with --beams'),
        ({'best': '2'}, '--best is 2; it needs --beams'),
        ({'beams': '2', 'best': '3'}, 'best is 3; it must be 1 to 2, the beams'),
    ],
)
def test_searching_and_drawing_do_not_mix(call, options: dict[str, str], line: str):
    code, out, err = call(**options)
    assert (code, out) == (2, '') and err == f'error: {line}\n'
