"""Tests the lists of --help: every config with its arguments, every field with its value and comment, in 100
columns.
"""

import dataclasses
import re
import typing

import pytest

from configs.quickstart import get_config
from efficient_attention.commands.config_help import CONFIGS, WIDTH, field_comments, list_configs, list_fields
from efficient_attention.config.dict_conversion import default_fields
from efficient_attention.config.run import RunConfig


@dataclasses.dataclass(frozen=True)
class Parent:
    """A group."""

    first: int = 1  # in steps
    # Of two lines,
    # above.
    second: str = '#'


@dataclasses.dataclass(frozen=True)
class Child(Parent):
    """Another."""

    third: tuple[int, ...] = (
        3,  # beside
    )
    fourth: int = 4

    def method(self) -> int:
        """No field."""
        return self.first  # no comment of a field


def test_comments_are_those_beside_and_above_the_fields():
    first = {'first': 'in steps', 'second': 'Of two lines, above.'}
    assert field_comments(Child) == first | {'third': 'beside', 'fourth': ''}


def test_every_field_of_a_run_has_a_comment_that_names_no_constant():
    groups = {name: kind for name, kind in typing.get_type_hints(RunConfig).items() if dataclasses.is_dataclass(kind)}
    for name, kind in groups.items():
        comments = field_comments(kind)
        assert list(comments) == [field.name for field in dataclasses.fields(kind)]
        assert not [field for field, comment in comments.items() if not comment or re.search('[A-Z]{4}S', comment)], (
            name
        )


def test_the_fields_of_a_config_are_listed_as_they_are_set():
    values = get_config().to_dict()
    values['train']['steps'] = None
    lines = list_fields(values).splitlines()
    assert max(map(len, lines)) <= WIDTH
    fields = [line.split()[0] for line in lines if line.startswith('  --config.')]
    groups = [group for group in default_fields(RunConfig) if group != 'task']
    wanted = [f'--config.{group}.{field}' for group in groups for field in values[group]]
    assert len(fields) == len(wanted) + 1 and fields[0] == "--config.task='pretraining'"
    assert {field.partition('=')[0] for field in fields[1:]} == set(wanted)
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith('  --config.data.length=64 ')] == [
        'tokens per row, special tokens included'
    ]
    assert any(line.startswith('  --config.train.steps=(open) ') for line in lines)


@pytest.fixture(scope='module')
def listed() -> str:
    return list_configs()


def test_every_config_is_listed_with_its_docstring_and_arguments(listed):
    files = [path for path in CONFIGS.rglob('*.py') if 'def get_config(' in path.read_text(encoding='utf-8')]
    assert all(f'  {path.relative_to(CONFIGS.parent)}\n' in listed for path in files) and 'common.py' not in listed
    assert 'A small ALBERT for a laptop CPU' in listed
    assert '<task>, by default :sst2; known: cola, sst2, mrpc,' in listed
    assert listed.count('; known: ') == sum('get_config()' not in path.read_text() for path in files)
    assert max(map(len, listed.splitlines())) <= WIDTH


FILES = {  # files of a user -> the lines below the file's name; None = the file is not a config
    'accepts_all': (
        '"""Any size."""\ndef get_config(size="small"):\n    return {}',
        ['Any size.', ':<size>, by default :small'],
    ),
    'two': ('def get_config(size, depth): ...', [':size']),
    'told': ('def get_config(size, /, depth=3):\n    raise ValueError("known: 1, 2")', [':size; known: 1, 2']),
    'not_imported': ('"""Far."""\nimport nowhere\ndef get_config(n=1 + 1): ...', ['Far.', ':<n>, by default :1 + 1']),
    'exits': ('import sys\ndef get_config(*size): ...\nsys.exit("no")', [':size']),
    'named': ('def get_config(*, size=1): ...', []),
    'not_run': ('"""Elsewhere."""\nfrom nowhere import other as get_config', ['Elsewhere.']),
    'damaged': ('def get_config(:', ['cannot be read: invalid syntax (damaged.py, line 1)']),
    'common': ('import nowhere\nsize = 3', None),
}


def test_a_users_own_files_are_listed_whatever_they_do(tmp_path):
    folder = tmp_path / 'configs'
    (folder / 'folder.py').mkdir(parents=True)
    for name, (source, _) in FILES.items():
        (folder / f'{name}.py').write_text(source, encoding='utf-8')
    lines = [line.strip() for line in list_configs(folder).splitlines()[1:]]
    wanted = {f'configs/{name}.py': told for name, (_, told) in FILES.items() if told is not None}
    assert lines == [line for name in sorted(wanted) for line in (name, *wanted[name])]
    (folder / 'latin.py').write_bytes(b'"\xff"')
    assert 'configs/latin.py\n      cannot be read: ' in list_configs(folder)
