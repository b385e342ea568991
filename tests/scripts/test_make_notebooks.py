"""Tests that the committed notebooks are made from the tutorials as they are, and run as Python."""

import ast
import json
from pathlib import Path

import pytest

from scripts.make_notebooks import TUTORIALS, notebook
from tests.documents.pages import TUTORIALS as PAGES


@pytest.mark.parametrize('page', PAGES, ids=lambda path: path.stem)
def test_a_notebook_is_that_of_its_tutorial(page: Path):
    """After a change of a tutorial, run scripts/make_notebooks.py."""
    committed = (TUTORIALS / 'colab' / f'{page.stem}.ipynb').read_text(encoding='utf-8')
    assert committed == notebook(page.read_text(encoding='utf-8'))
    cells = json.loads(committed)['cells']
    code = [''.join(cell['source']) for cell in cells if cell['cell_type'] == 'code']
    assert len(code) == page.read_text(encoding='utf-8').count('```{code-cell}') + 1
    code[0] = code[0].replace('%pip', 'pass  #')  # IPython's
    assert all(ast.parse(text) for text in code if not text.startswith('%%bash\n'))
    assert len({cell['id'] for cell in cells}) == len(cells)


def test_there_is_no_notebook_without_its_tutorial():
    assert PAGES and {path.stem for path in (TUTORIALS / 'colab').iterdir()} == {path.stem for path in PAGES}


def test_prose_and_code_become_cells():
    page = '---\nkernelspec: {}\n---\n\n# Title\n\nSee [a](../b.md).\n\n```{code-cell} python\nx = 1\n```\n\nEnd.\n'
    title, set_up, code, end = json.loads(notebook(page))['cells']
    assert title['source'] == ['# Title\n', '\n', 'See [a](../../b.md).'] and end['source'] == ['End.']
    assert code['source'] == ['x = 1'] and "PACKAGE = ''\n" in set_up['source']
