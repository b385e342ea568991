"""Tests the subcommand `configs`: it lists, shows and finds the package's configs."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from efficient_attention.commands.config_files import CONFIGS
from efficient_attention.errors import InputError
from efficient_attention.programs import configs

pytestmark = pytest.mark.filterwarnings('ignore:the load_module')  # ml_collections uses load_module


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path) -> Callable[..., str]:
    """Returns a function that runs the program in an empty folder, and returns its output."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, 'argv', ['efficient-attention configs', *arguments])
        configs.main()
        return capsys.readouterr().out

    return run


def test_the_list_has_each_config_with_its_first_line(call):
    lines = call('list').splitlines()
    names = [line.split('  ')[0] for line in lines]
    assert {'quickstart.py', 'finetune/glue.py', 'lm/gpt.py'} < set(names) and names == sorted(set(names))
    assert not [name for name in names if name.endswith('common.py')]
    assert 'quickstart.py  A small ALBERT for a laptop CPU' in '\n'.join(lines)


def test_the_list_of_a_part_has_the_names_with_it(call):
    names = [line.split('  ')[0] for line in call('list', 'lm/').splitlines()]
    assert 'lm/gpt.py' in names and all(name.startswith('lm/') for name in names)
    with pytest.raises(InputError, match=r"^list: no config has 'quikstart' in its name; did you mean quickstart.py\?"):
        call('list', 'quikstart')


@pytest.mark.parametrize(
    'name', ['finetune/glue', 'finetune/glue.py', 'configs/finetune/glue.py', 'finetune/glue.py:sst2']
)
def test_where_prints_the_path(call, name: str):
    assert call('where', name) == f'{CONFIGS / "finetune" / "glue.py"}\n'


def test_show_prints_the_fields_that_an_argument_sets(call):
    shown = call('show', 'finetune/glue.py:sst2')
    assert shown.startswith('Fine-tunes any checkpoint on one GLUE task')
    assert "  --config.examples.name='sst2' " in shown
    assert "  --config.examples.name='mrpc' " in call('show', 'finetune/glue.py:mrpc')


def test_show_prints_the_source(call):
    assert call('show', 'quickstart', '--source') == (CONFIGS / 'quickstart.py').read_text(encoding='utf-8')


def test_a_file_of_the_user_is_shown_too(call, tmp_path: Path):
    text = '"""Mine."""\nfrom configs.quickstart import get_config\n'
    (tmp_path / 'mine.py').write_text(text)
    assert call('show', 'mine.py', '--source') == text
    shown = call('show', 'mine.py')
    assert shown.startswith('Mine.\n') and '  --config.model.layers=' in shown
