"""Tests the subcommand `sweep`: the SLURM script, the table, and one line for bad flags before anything trains."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from configs.quickstart import get_config
from efficient_attention.experiments.search_space import parse_search
from efficient_attention.experiments.sweep import claim_folder, make_sweep
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


@pytest.mark.parametrize('spelling', [('--slurm',), ('--slurm=True',), ('-slurm=1', '--trial=1')])
def test_slurm_prints_a_script_and_trains_nothing(call, tmp_path: Path, spelling: tuple[str, ...]):
    fields = ('--config.train.steps', '7', '--config.model.attention=window(8) | global_tokens(1)', '--search')
    code, out, err = call(*LAYERS, '--sampler', 'grid', *spelling, *fields, 'model.heads=1,2')
    assert (code, err) == (0, '') and '#SBATCH --array=0-3' in out
    assert '-slurm' not in out and '--trial=' not in out and not (tmp_path / 'sweep').exists()
    command = shlex.split(out.splitlines()[-3])
    assert command[1:4] == ['-m', 'efficient_attention', 'sweep'] and command[-2:] == [
        '--trial',
        '$SLURM_ARRAY_TASK_ID',
    ]
    words = [word for word in command[4:-2] if not word.startswith(('--config=', '--workdir='))]
    assert call(*words, '--slurm') == (0, out, '')  # the words in the script mean the same sweep
    expected = {
        '--search=model.layers=1,2',
        '--search=model.heads=1,2',
        '--sampler=grid',
        '--metric=loss',
        '--mode=min',
    }
    expected |= {'--config.train.steps=7', f'--config.model.attention={fields[2].partition("=")[2]}'}
    assert expected <= set(command)


def test_the_table_is_written_without_training(call, tmp_path: Path):
    code, out, err = call(*LAYERS, '--sampler', 'grid', '--table')
    assert (code, out) == (2, '') and 'sweep.json is missing' in err and not (tmp_path / 'sweep').exists()
    values = get_config().to_dict()
    search = parse_search(['model.layers=1,2'], values)
    sweep = make_sweep(values, search, tmp_path / 'sweep', sampler='grid', objective=('loss', 'min'))
    claim_folder(sweep)
    result = {'number': 0, 'fields': {'model.layers': 1}, 'value': 2.5, 'seeds': {'0': {}}, 'deviation': {}}
    sweep.result_path(0).write_text(json.dumps(result))
    sweep.result_path(1).write_text(json.dumps({'number': 1, 'fields': {'model.layers': 2}, 'error': 'RunError: x'}))
    code, out, err = call(*LAYERS, '--sampler', 'grid', '--table')
    assert (code, err) == (0, '') and '| 0 | 1 | 2.5000 |' in out and 'failed: RunError: x' in out
    assert (tmp_path / 'sweep' / 'sweep.html').is_file() and not list((tmp_path / 'sweep').glob('trial_*/'))


@pytest.mark.parametrize(
    ('arguments', 'line'),
    [
        (('--search', 'model.layer=1,2'), 'unknown config field model.layer; did you mean model.layers'),
        ((*LAYERS, '--config.model.layers=2'), '--search and --config both set model.layers; leave one out'),
        ((*LAYERS, '--config.train.seed=2'), '--config.train.seed is 2, which --seeds names; leave it out'),
        ((*LAYERS, '--trials=3', '--sampler=tpe', '--slurm'), '--slurm needs --sampler random or grid'),
        ((*LAYERS, '--trials=3', '--sampler=tpe', '--trial=1'), '--trial needs --sampler random or grid'),
        ((*LAYERS, '--trials=2', '--trial=2'), '--trial is 2; the sweep has the trials 0 to 1'),
    ],
)
def test_bad_flags_give_one_line(call, tmp_path: Path, arguments: tuple[str, ...], line: str):
    code, out, err = call(*arguments)
    assert (code, out) == (2, '') and err.startswith('error: ') and line in err and err.count('\n') == 1
    assert not (tmp_path / 'sweep').exists()
