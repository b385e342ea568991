"""Tests that the tutorials use only public names: `ea.*`, `efficient_attention.testing` and the installed command.

`make docs` runs the tutorials themselves.
"""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import efficient_attention as ea
from efficient_attention.commands.command_line import parse_flag_values
from efficient_attention.commands.config_files import find_config
from efficient_attention.errors import InputError
from efficient_attention.programs.dispatch import COMMAND, PROGRAMS, load_program
from tests.documents.pages import TUTORIALS

CELL = re.compile(r'^```(?:\{code-cell\} )?python\n(.*?)^```$', re.MULTILINE | re.DOTALL)
SHELL = '%%bash\n'  # the first line of a cell of commands
OURS = ('efficient_attention', 'configs', 'tests', 'scripts')
PUBLIC = ('efficient_attention', 'efficient_attention.testing')
TOOLS = ('head', 'ls')  # what else a cell of commands may call


def private_names(cell: str) -> list[str]:
    """Returns what a cell imports from this project, or reads from `ea`, that is no public name."""
    found = []
    for node in ast.walk(ast.parse(cell)):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [node.module or '']
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == 'ea':
            found += [] if node.attr in ea.__all__ else [f'efficient_attention.{node.attr}']
    return [name for name in found if name.partition('.')[0] in OURS and name not in PUBLIC]


def cells(page: Path) -> Iterator[str]:
    return (cell[1] for cell in CELL.finditer(page.read_text(encoding='utf-8')))


def check_command(line: str) -> None:
    """Raises if a line calls another program, a missing subcommand, or a subcommand with a missing flag."""
    name, *words = shlex.split(line)
    if name in TOOLS:
        return
    assert name == COMMAND and words[0] in PROGRAMS, line
    parse_flag_values(words, (), load_program(words[0]).define_flags())


@pytest.mark.parametrize('page', TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_uses_public_names_only(page: Path):
    found = [*cells(page)]
    assert len(found) > 3
    assert [name for cell in found if not cell.startswith(SHELL) for name in private_names(cell)] == []
    for cell in found:
        for config in re.findall(r"ea\.train\('([^']+)'", cell):
            assert Path(find_config(config).partition(':')[0]).is_file()
        if cell.startswith(SHELL):
            for line in cell.splitlines()[1:]:
                check_command(line)


def test_tutorials_call_the_command_and_train_by_name():
    text = ''.join(cell for page in TUTORIALS for cell in cells(page))
    assert text.count(f'\n{COMMAND} ') >= 3 and text.count("ea.train('") >= 2


def test_what_is_not_public_is_found():
    private = 'import configs.arena\nfrom efficient_attention.interop import pretrained\nea.open_pretrained()\n'
    expected = ['configs.arena', 'efficient_attention.interop', 'efficient_attention.open_pretrained']
    assert sorted(private_names(private)) == sorted(expected)
    assert private_names('import jax\nfrom efficient_attention.testing import check_mechanism\nea.attend()') == []
    check_command('efficient-attention predict --model a --output b')
    for line in ('python x.py', 'efficient-attention guess --model a'):
        with pytest.raises(AssertionError):
            check_command(line)
    with pytest.raises(InputError, match='modle'):
        check_command('efficient-attention predict --modle a')
