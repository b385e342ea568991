"""Tests the subcommand `sweep`: the SLURM script, and one line for bad flags before anything trains."""

import sys
from pathlib import Path

import pytest

from efficient_attention.programs.dispatch import run_program

pytestmark = pytest.mark.filterwarnings('ignore:the load_module')  # ml_collections uses load_module
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, tmp_path: Path):
    """Returns a function that runs the subcommand in this process: exit code, output, errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        config = ['--config', str(ROOT / 'configs' / 'quickstart.py'), '--workdir', str(tmp_path / 'sweep')]
        monkeypatch.setattr(sys, 'argv', ['efficient-attention sweep', *config, *arguments])
        code = 0
        try:
            run_program('sweep')
        except SystemExit as exited:
            code = exited.code
        return code, *capfd.readouterr()

    return run


LAYERS = ('--search', 'model.layers=1,2', '--metric', 'loss', '--mode', 'min')


def test_slurm_prints_a_script_and_trains_nothing(call, tmp_path: Path):
    code, out, err = call(*LAYERS, '--sampler', 'grid', '--slurm')
    assert (code, err) == (0, '') and '#SBATCH --array=0-1' in out
    assert 'efficient_attention sweep' in out and '--search model.layers=1,2' in out and '--slurm' not in out
    assert not (tmp_path / 'sweep').exists()


@pytest.mark.parametrize(
    ('arguments', 'line'),
    [
        (('--search', 'model.layer=1,2'), 'unknown config field model.layer; did you mean model.layers'),
        ((*LAYERS, '--config.model.layers=2'), '--search and --config both set model.layers; leave one out'),
        ((*LAYERS, '--config.train.seed=2'), '--config.train.seed is 2, which --seeds names; leave it out'),
        ((*LAYERS, '--trials=3', '--sampler=tpe', '--slurm'), '--slurm needs --sampler random or grid'),
    ],
)
def test_bad_flags_give_one_line(call, tmp_path: Path, arguments: tuple[str, ...], line: str):
    code, out, err = call(*arguments)
    assert (code, out) == (2, '') and err.startswith('error: ') and line in err and err.count('\n') == 1
    assert not (tmp_path / 'sweep').exists()
