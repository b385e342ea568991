"""Writes the tutorials as notebooks, for Jupyter and Colab: docs/tutorials/colab/<name>.ipynb.

    python scripts/make_notebooks.py

The sources are the Markdown files in docs/tutorials/, which `make docs` runs. The notebooks have no outputs.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled before the other imports, which are slow.

import json
import re
import sys
from pathlib import Path
from typing import Any

from absl import flags

from efficient_attention.commands.command_line import parse_flags, run_command

TUTORIALS = Path(__file__).resolve().parents[1] / 'docs' / 'tutorials'
CELL = re.compile(r'^```\{code-cell\}[^\n]*\n(.*?)^```\n', re.MULTILINE | re.DOTALL)
# The first code cell. No address of the package is known here, so a user of Colab gives one.
SET_UP = """import importlib.util
import os
import sys

# In Colab: write where the package is between the quotes. Examples: git+https://<host>/<user>/efficient-attention,
# or, after an upload of the wheel, file:///content/efficient_attention-<version>-py3-none-any.whl
PACKAGE = ''
if PACKAGE:
    %pip install --quiet "efficient-attention[train] @ {PACKAGE}" treescope
elif importlib.util.find_spec('efficient_attention') is None:
    raise SystemExit('efficient-attention is not installed: write its address into PACKAGE, and run this cell again')
# Cells with %%bash call the command that is next to this Python.
os.environ['PATH'] = os.pathsep.join([os.path.dirname(sys.executable), os.environ['PATH']])"""


def main() -> None:
    """Writes the notebooks of all tutorials."""
    parse_flags(sys.argv, (), options=flags.FlagValues())
    folder = TUTORIALS / 'colab'
    folder.mkdir(exist_ok=True)
    for path in sorted(TUTORIALS.glob('*.md')):
        (folder / f'{path.stem}.ipynb').write_text(notebook(path.read_text(encoding='utf-8')), encoding='utf-8')


def notebook(page: str) -> str:
    """Returns the JSON of a notebook from the text of a tutorial."""
    text = re.sub(r'\A---\n.*?\n---\n', '', page, flags=re.DOTALL)
    text = re.sub(r'^This page as a \[notebook\].*\n\n', '', text, flags=re.MULTILINE)
    text = re.sub(r'\]\((?!\w+:|#)', '](../', text)  # the notebook is one folder deeper
    parts = CELL.split(text)  # prose and code alternate
    cells = [cell(number, number % 2 == 1, part.strip()) for number, part in enumerate(parts) if part.strip()]
    cells.insert(1, cell(len(parts), True, SET_UP))
    kernel = {'display_name': 'Python 3', 'language': 'python', 'name': 'python3'}
    whole = {'cells': cells, 'metadata': {'kernelspec': kernel}, 'nbformat': 4, 'nbformat_minor': 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + '\n'


def cell(number: int, is_code: bool, text: str) -> dict[str, Any]:
    """Returns a cell of a notebook."""
    kind: dict[str, Any] = {'cell_type': 'markdown'}
    if is_code:
        kind = {'cell_type': 'code', 'execution_count': None, 'outputs': []}
    return kind | {'id': f'cell-{number}', 'metadata': {}, 'source': text.splitlines(keepends=True)}


if __name__ == '__main__':
    run_command(main)
