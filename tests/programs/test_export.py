"""Tests the subcommand `export`: the folder that it writes, and one line for bad input."""

import sys
from pathlib import Path

import pytest

from efficient_attention.programs.dispatch import run_program
from tests.inference.tiny_checkpoint import write_checkpoint


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture):
    """Returns a function that runs the subcommand in this process: exit code, output, errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, 'argv', ['efficient-attention export', *arguments])
        code = 0
        try:
            run_program('export')
        except SystemExit as exited:
            code = exited.code
        return code, *capfd.readouterr()

    return run


def test_a_folder_with_a_program_is_written_once(call, tmp_path: Path):
    source, output = write_checkpoint(tmp_path, 'regression'), tmp_path / 'out'
    code, out, err = call('--model', str(source), '--output', str(output), '--length', '8')
    assert code == 0 and f'{output}: a program of the format jax' in out, err
    assert {'model.jax', 'model.safetensors', 'export.json', 'README.md', 'vocab.txt'} <= {
        p.name for p in output.iterdir()
    }
    assert 'jax.export.deserialize' in (output / 'README.md').read_text()
    assert call('--model', str(source), '--output', str(output)) == (
        2,
        '',
        f'error: --output {output}: there is something already\n',
    )


def test_names_of_a_hub_are_not_downloaded(call, tmp_path: Path):
    code, _, err = call('--model', 'bert-base-uncased', '--output', str(tmp_path / 'out'))
    assert code == 2 and 'bert-base-uncased is no folder; names of a hub are not downloaded' in err
