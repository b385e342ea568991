"""Tests that the script prints a plan without data, in this process, and refuses bad input in one line."""

import json
import runpy
import sys
from pathlib import Path

import pytest
from absl import flags

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.filterwarnings('ignore:the load_module'),  # ml_collections uses load_module
    pytest.mark.devices,
]
TINY = ('--config', str(ROOT / 'tests/training/tiny_run.py'), '--config.data.source=text:/nowhere/*.txt')


@pytest.fixture
def plan(monkeypatch, capsys):
    """Returns a function that runs the script with arguments: exit code, output, errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        known = set(flags.FLAGS)
        monkeypatch.setattr(sys, 'argv', ['scripts/plan.py', *arguments])
        try:
            runpy.run_path(str(ROOT / 'scripts/plan.py'), run_name='__main__')
            code = 0
        except SystemExit as exited:
            code = int(exited.code or 0)
        finally:
            for name in set(flags.FLAGS) - known:
                delattr(flags.FLAGS, name)
        return code, *capsys.readouterr()

    return run


@pytest.mark.lenient_promotion  # Optax mixes Python floats with int32 counts, which strict promotion refuses
def test_plans_without_data(plan, tmp_path):
    output = tmp_path / 'plan.json'
    arguments = (*TINY, '--config.mesh.tensor=2', '--topology', 'cpu:2', '--nolargest', '--output', str(output))
    code, printed, errors = plan(*arguments)
    assert code == 0, errors
    assert '(data 1 x fsdp 1 x tensor 2' in printed and ' over tensor: ' in printed
    figures = json.loads(output.read_text())
    assert figures['mesh']['tensor'] == 2 and figures['batch_size'] == 8 and figures['parameters'] == 8936
    assert figures['memory_bytes']['temporary'] > 0 and figures['cost']['flops'] > 0
    assert {one['axes'] for one in figures['collectives']} == {'tensor'}
    assert [path.name for path in tmp_path.iterdir()] == ['plan.json']


def test_compares_the_policies_of_remat(plan, monkeypatch, tmp_path):
    output = tmp_path / 'plan.json'
    for name, value in {'plan_policies': {'none': 1, 'full': 2}, 'format_policies': 'a table'}.items():
        monkeypatch.setattr(f'efficient_attention.planning.remat_comparison.{name}', lambda *_, value=value: value)
    monkeypatch.setattr('efficient_attention.planning.plan.as_dict', lambda number: {'batch_size': number})
    code, printed, errors = plan(*TINY, '--topology', 'cpu:2', '--compare_remat', '--output', str(output))
    assert (code, printed) == (0, 'a table\n'), errors
    assert json.loads(output.read_text()) == {'none': {'batch_size': 1}, 'full': {'batch_size': 2}}


def test_figures_that_cannot_be_written_are_one_line(plan, monkeypatch, tmp_path):
    (tmp_path / 'file').touch()
    for name, value in {'plan.make_plan': None, 'report.format_plan': 'a plan', 'plan.as_dict': {}}.items():
        monkeypatch.setattr(f'efficient_attention.planning.{name}', lambda *_, value=value, **__: value)
    code, printed, errors = plan(*TINY, '--topology', 'cpu:2', '--output', str(tmp_path / 'file' / 'plan.json'))
    assert (code, printed) == (2, 'a plan\n')
    assert errors.startswith('error: ') and 'plan.json: cannot be written' in errors and errors.count('\n') == 1


@pytest.mark.parametrize(
    'arguments, message',
    [
        (('--topology', 'v9:2x2'), "topology 'v9:2x2' is not known"),
        (('--topology', 'v5e:8'), 'must be the sizes of its torus, such as 4x4'),
        (('--topology', 'cpu:2', '--config.mesh.fsdp=3'), 'mesh.fsdp 3'),
        (('--topology', 'cpu:2', '--config.mesh.sequence=2', '--config.data.length=31'), 'data.length 31'),
        (('--topology', 'cpu:2', '--config.train.batch_size=9'), 'train.batch_size 9 does not divide over 2 devices'),
        ((), '--topology is missing'),
    ],
)
def test_refusals_are_one_line(plan, arguments, message):
    code, printed, errors = plan(*TINY, *arguments)
    assert code == 2 and not printed
    assert errors.startswith('error: ') and message in errors and errors.count('\n') == 1


def test_a_run_that_follows_a_checkpoint_needs_it(plan):
    code, _, errors = plan('--config', f'{ROOT}/configs/text_to_text/glue.py:sst2-pretrained', '--topology', 'cpu:2')
    assert code == 2 and 'train.start_from' in errors and errors.count('\n') == 1


def test_fine_tuning_is_refused_before_files_are_read(plan):
    code, _, errors = plan('--config', str(ROOT / 'configs/finetune/glue.py'), '--topology', 'cpu:2')
    assert code == 2 and "task is 'fine_tuning'" in errors and errors.count('\n') == 1
