"""Tests that mutants fit the lines that they change, and that the report says which tests notice a mutant."""

from pathlib import Path

import pytest

from scripts.stress.kill_mutants import MUTANTS, PACKAGE, ROOT, Mutant, nearest_tests, run_tests_on_mutant, summary

SOURCE = 'def half(x):\n    return x / 2\n'
TESTS = 'from efficient_attention.attention.halves import half\n\n\ndef test_half():\n    assert half({}) == {}\n'


@pytest.mark.parametrize('mutant', MUTANTS, ids=lambda mutant: f'{mutant.path}: {mutant.broken}')
def test_a_mutant_changes_one_place_of_a_file_that_has_tests(mutant: Mutant):
    path = mutant.find_file(ROOT / PACKAGE)
    text = (ROOT / PACKAGE / path).read_text(encoding='utf-8')
    assert text.count(mutant.text) == 1 and mutant.broken not in ('', mutant.text)
    assert (ROOT / nearest_tests(path, ROOT)).exists()
    compile(text.replace(mutant.text, mutant.broken), path, 'exec')


def test_no_mutant_stands_there_twice():
    assert len({(mutant.text, mutant.path) for mutant in MUTANTS}) == len(MUTANTS)


def test_a_line_that_has_moved_is_found_where_it_stands_once(tmp_path: Path):
    for name, text in {'a.py': 'x = 1\n', 'room/b.py': 'x = 2\n', 'room/c.py': 'y = 3\nz = y\nz = y\n'}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding='utf-8')
    assert Mutant('a.py', 'x = 2', '').find_file(tmp_path) == 'room/b.py'
    assert Mutant('a.py', 'x = ', '').find_file(tmp_path) == 'a.py'
    assert Mutant('d.py', 'x = ', '').find_file(tmp_path) == Mutant('room/c.py', 'z = y', '').find_file(tmp_path) == ''


@pytest.fixture
def _without_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns off pytest's plugins, which the tests of the mutants do not need."""
    monkeypatch.setenv('PYTEST_DISABLE_PLUGIN_AUTOLOAD', '1')


@pytest.mark.usefixtures('_without_plugins')
@pytest.mark.parametrize('value, by', [(4, 'file'), (0, 'nobody')])
def test_who_notices(tmp_path: Path, value: int, by: str):
    """A test with the value 0 cannot distinguish a half from a third, so no test notices the mutant."""
    write_tree(tmp_path, value)
    mutant = Mutant('attention/halves.py', 'x / 2', 'x / 3')
    who, failed = run_tests_on_mutant(mutant, tmp_path, is_own_alone=True)
    assert who == by and failed == ('' if by == 'nobody' else 'tests/attention/test_halves.py::test_half')
    assert (tmp_path / 'efficient_attention/attention/halves.py').read_text(encoding='utf-8') == SOURCE
    assert summary({1: by}) == {'mutants': 1, 'file': 0, 'package': 0, 'nobody': 0, 'absent': 0} | {by: 1}


@pytest.mark.usefixtures('_without_plugins')
def test_tests_that_fail_without_a_mutant_are_named(tmp_path: Path):
    write_tree(tmp_path, 3)
    with pytest.raises(RuntimeError, match='test_half fails without any mutant'):
        run_tests_on_mutant(Mutant('attention/halves.py', 'x / 2', 'x / 3'), tmp_path)


def test_a_line_that_a_tree_does_not_have_is_absent(tmp_path: Path):
    write_tree(tmp_path, 4)
    assert run_tests_on_mutant(Mutant('attention/halves.py', 'x / 4', 'x / 3'), tmp_path) == ('absent', '')
    assert run_tests_on_mutant(Mutant('attention/quarters.py', 'x / 4', 'x / 3'), tmp_path) == ('absent', '')


def write_tree(folder: Path, value: int) -> None:
    """Writes a package with one function and its test."""
    files = {
        'efficient_attention/__init__.py': '',
        'efficient_attention/attention/__init__.py': '',
        'efficient_attention/attention/halves.py': SOURCE,
        'tests/attention/test_halves.py': TESTS.format(value, value // 2),
        'pyproject.toml': '[tool.pytest.ini_options]\naddopts = ["--import-mode=importlib"]\npythonpath = ["."]\n',
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding='utf-8')
