"""Tests the command that trains a grid: its files, and its exit code if a cell fails."""

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from absl import flags

from efficient_attention.experiments import grid as module

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.filterwarnings('ignore:the load_module')  # ml_collections uses load_module
CELL = {
    'seeds': {seed: {'dev': {'accuracy': 0.5}, 'test': {'accuracy': 0.4}} for seed in '01'},
    'mean': {'accuracy': 0.4},
    'deviation': {'accuracy': 0.0},
    'metric': 'accuracy',
    'learning_rate': 1e-3,
    'parameters': 10,
    'steps_per_second': 1.0,
    'seconds': 60.0,
    'temporary_bytes': 2**20,
}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def train_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Run:
    """Returns a function that runs the script in this process: exit code, output, errors."""
    sets = [f'--config.examples.{split}=listops:rows=20:length=8-30' for split in ('train', 'dev', 'test')]
    words = [
        '--config=configs/arena.py',
        '--rows=listops_short',
        '--columns=full,linear',
        f'--workdir={tmp_path / "grid"}',
    ]
    words += [f'--config.examples.cache={tmp_path / "cache"}', *sets]

    def run(*arguments: str) -> tuple[int, str, str]:
        known, code = set(flags.FLAGS), 0
        monkeypatch.setattr(sys, 'argv', ['scripts/train_grid.py', *words, *arguments])
        try:
            runpy.run_path(str(ROOT / 'scripts/train_grid.py'), run_name='__main__')
        except SystemExit as exited:
            code = int(exited.code or 0)
        finally:
            for name in set(flags.FLAGS) - known:
                delattr(flags.FLAGS, name)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replaces `train_cell` and returns its grid for each cell; the cell of linear attention fails."""
    asked: dict[str, Any] = {}

    def train_cell(grid: module.Grid, row: str, column: str, _: dict[str, Any]) -> dict[str, Any]:
        asked[column] = grid
        if column == 'linear':
            raise MemoryError('no room')
        (grid.folder(row, column) / 'cell.json').write_text(json.dumps(CELL))
        return CELL

    monkeypatch.setattr(module, 'train_cell', train_cell)
    monkeypatch.setattr(module, 'enable_compilation_cache', lambda: None)
    return asked


def test_cells_seeds_rates_and_files(train_grid: Run, asked: dict[str, Any], tmp_path: Path):
    arguments = ('--seeds=0,1', '--config.train.steps=7', '--rates=1e-3,3e-3', '--pilot_steps=5')
    code, printed, errors = train_grid(*arguments)
    assert code == 1 and errors.endswith('error: 1 of 2 cells failed: listops_short,linear\n')
    grid = asked['full']
    assert list(grid.cells) == [('listops_short', 'full'), ('listops_short', 'linear')]
    assert grid.cells['listops_short', 'linear']['train']['steps'] == 7
    assert (grid.seeds, grid.pilots) == (['0', '1'], ((1e-3, 3e-3), 5))
    content = json.loads((tmp_path / 'grid' / 'grid.json').read_text())
    assert content['cells'] == {'listops_short': {'full': CELL, 'linear': {'error': 'MemoryError: no room'}}}
    assert list(content['yardsticks']['listops_short']) == ['majority', 'root', 'root_digits']
    assert '| linear | failed: MemoryError: no room |' in (tmp_path / 'grid' / 'grid.md').read_text()
    assert (tmp_path / 'grid' / 'grid.svg').is_file()
    assert json.loads(printed.splitlines()[-1]) == {'cells': 2, 'failed': ['listops_short,linear']}


@pytest.mark.usefixtures('asked')
def test_a_table_is_written_though_a_row_has_no_baselines(train_grid: Run, tmp_path: Path):
    where = tmp_path / 'nowhere'
    code, _, errors = train_grid('--columns=full', f'--config.examples.test=imdb:folder={where}')
    assert code == 1 and errors.endswith('error: no baselines for listops_short\n') and str(where) in errors
    content = json.loads((tmp_path / 'grid' / 'grid.json').read_text())
    assert content['cells'] == {'listops_short': {'full': CELL}} and content['yardsticks'] == {}


@pytest.mark.usefixtures('asked')
def test_a_later_command_on_other_rows_keeps_failures_and_baselines(train_grid: Run, tmp_path: Path):
    assert train_grid()[0] == 1
    rows = [f'--config.examples.{split}=recall:rows=20:length=20:pairs=4' for split in ('train', 'dev', 'test')]
    assert train_grid('--rows=recall', '--columns=full', *rows)[0] == 0
    content = json.loads((tmp_path / 'grid' / 'grid.json').read_text())
    assert content['cells']['listops_short']['linear'] == {'error': 'MemoryError: no room'}
    assert {row: list(found) for row, found in content['yardsticks'].items()} == {
        'listops_short': ['majority', 'root', 'root_digits'],
        'recall': ['majority', 'values'],
    }
    # results and baselines of the other rows are then restored from their cells
    (tmp_path / 'grid' / 'grid.json').write_text('{')
    assert train_grid('--rows=recall', '--columns=full', *rows)[0] == 0
    assert json.loads((tmp_path / 'grid' / 'grid.json').read_text())['yardsticks'] == content['yardsticks']


@pytest.mark.usefixtures('asked')
def test_a_damaged_file_of_baselines_is_one_line(train_grid: Run, tmp_path: Path):
    (tmp_path / 'grid').mkdir()
    (tmp_path / 'grid' / 'yardsticks.json').write_text('{')
    code, _, errors = train_grid('--columns=full')
    assert code == 1 and 'yardsticks.json: not a JSON object that can be read' in errors and 'Traceback' not in errors
    assert list(json.loads((tmp_path / 'grid' / 'grid.json').read_text())['cells']) == ['listops_short']


def test_baselines_without_any_run(train_grid: Run, asked: dict[str, Any]):
    code, printed, errors = train_grid('--yardsticks')
    assert code == 0, errors
    assert list(json.loads(printed)['listops_short']) == ['majority', 'root', 'root_digits'] and not asked
