"""Tests how configs are found by name: in any folder, after a path that exists, and with advice for unknown names."""

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest
from absl import flags

from efficient_attention.commands import config_files
from efficient_attention.commands.command_line import parse_flags
from efficient_attention.commands.config_files import CONFIGS, find_config, find_config_arguments
from efficient_attention.commands.flags import define_config
from efficient_attention.errors import InputError

GLUE = CONFIGS / 'finetune' / 'glue.py'
LOADING = pytest.mark.filterwarnings('ignore:the load_module')  # ml_collections uses load_module


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Lets each test run in an empty folder, and restores the import of configs afterwards."""
    monkeypatch.chdir(tmp_path)
    for name in ('configs', *(name for name in sys.modules if name.startswith('configs.'))):
        monkeypatch.setitem(sys.modules, name, importlib.import_module(name))


@pytest.mark.parametrize(
    'name', ['finetune/glue.py', 'configs/finetune/glue.py', './configs/finetune/glue.py', 'finetune/glue']
)
def test_a_name_is_found_in_a_folder_without_configs(name: str):
    assert find_config(name) == str(GLUE)
    assert find_config(f'{name}:sst2') == f'{GLUE}:sst2'


def test_a_path_that_exists_wins(tmp_path: Path):
    (tmp_path / 'finetune').mkdir()
    (tmp_path / 'finetune' / 'glue.py').touch()
    assert find_config('finetune/glue.py:x:y') == find_config('finetune/glue:x:y') == 'finetune/glue.py:x:y'
    (tmp_path / 'quickstart').mkdir()
    assert find_config('quickstart') == str(CONFIGS / 'quickstart.py')
    assert find_config('configs/finetune/glue.py') == str(GLUE)


@pytest.mark.parametrize(
    'text, advice',
    [
        ('finetune/gleu.py:sst2', 'did you mean finetune/glue.py or '),
        ('squad.py', 'did you mean finetune/squad.py or prune/squad.py? '),
        ('glue', 'did you mean distill/glue.py or finetune/glue.py'),
        ('gpt2', 'did you mean lm/gpt.py? '),
        ('zzzzzz', '`efficient-attention configs list` names all'),
        ('../setup.py', '`efficient-attention configs list` names all'),
    ],
)
def test_an_unknown_name_is_one_line_with_the_nearest_names(text: str, advice: str):
    with pytest.raises(InputError) as caught:
        find_config(text)
    path = text.partition(':')[0]
    assert str(caught.value).startswith(f"config: there is no file '{path}', and no config of this name; {advice}")


def test_only_the_value_of_the_flag_is_replaced():
    words = ['p', '--config', 'lm/gpt.py', '--config.train.steps=3', 'lm/gpt.py', '--config=quickstart.py', '--x=lm']
    found = [*find_config_arguments(words)]
    assert found == [*words[:2], f'{CONFIGS}/lm/gpt.py', *words[3:5], f'--config={CONFIGS}/quickstart.py', '--x=lm']


@LOADING
@pytest.mark.parametrize('words', [['--config', 'finetune/glue.py:sst2'], ['--config=configs/finetune/glue.py:sst2']])
def test_a_command_line_reads_a_config_by_name(monkeypatch: pytest.MonkeyPatch, words: list[str]):
    monkeypatch.setattr(sys, 'argv', ['program', *words, '--config.train.seed=7'])
    options = flags.FlagValues()
    define_config('Config file.', options)
    parse_flags(sys.argv, ('config',), options=options)
    assert (options.config.examples.name, options.config.train.seed) == ('sst2', 7)


def without_configs(places: list[str]) -> list[str]:
    """Returns the folders of Python's path that have no folder configs/, as outside of a checkout."""
    return [place for place in places if not (Path(place or '.') / 'configs').is_dir()]


@pytest.mark.parametrize('is_first', [True, False])
def test_configs_of_the_package_and_of_the_user_are_both_importable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
):
    (tmp_path / 'configs').mkdir()
    for name in ('common.py', 'mine.py'):
        (tmp_path / 'configs' / name).touch()
    monkeypatch.delitem(sys.modules, 'configs')
    monkeypatch.setattr(sys, 'path', [str(tmp_path), *without_configs(sys.path)])
    config_files.make_configs_importable(is_first=is_first)
    names = ('common', 'mine', 'quickstart')
    places = {name: importlib.util.find_spec(f'configs.{name}').origin for name in names}
    assert places['common'] == str((CONFIGS if is_first else tmp_path / 'configs') / 'common.py')
    assert places['mine'] == str(tmp_path / 'configs' / 'mine.py')
    assert places['quickstart'] == str(CONFIGS / 'quickstart.py')


def test_another_order_of_the_folders_reads_the_files_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / 'configs').mkdir()
    (tmp_path / 'configs' / 'common.py').write_text('WHOSE = "mine"')
    monkeypatch.delitem(sys.modules, 'configs')
    monkeypatch.setattr(sys, 'path', [str(tmp_path), *without_configs(sys.path)])
    found = []
    for is_first in (True, True, False):
        config_files.make_configs_importable(is_first=is_first)
        found.append(importlib.import_module('configs.common'))
    assert found[0] is found[1] and not hasattr(found[0], 'WHOSE') and found[2].WHOSE == 'mine'


def test_a_path_into_the_packages_configs_also_puts_these_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / 'configs').mkdir()
    monkeypatch.delitem(sys.modules, 'configs')
    monkeypatch.setattr(sys, 'path', [str(tmp_path), *without_configs(sys.path)])
    for path, place in ((str(tmp_path), tmp_path / 'configs'), (f'{GLUE}:sst2', CONFIGS)):
        assert find_config(path) == path and sys.modules['configs'].__path__[0] == str(place)


def test_the_package_needs_no_checkout_on_the_path(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, 'configs')
    monkeypatch.setattr(sys, 'path', without_configs(sys.path))
    config_files.make_configs_importable(is_first=False)
    assert list(sys.modules['configs'].__path__) == [str(CONFIGS)]
