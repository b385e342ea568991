"""The command that trains a grid: its files, and its exit code where a cell fails."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from absl import flags

from efficient_attention.errors import RunError
from efficient_attention.training import grid as module
from scripts import train_grid

LINE = ['train_grid.py', '--config=configs/arena.py', '--rows=listops_short', '--columns=full,linear', '--seeds=0,1']
LINE += ['--config.train.steps=7', '--rates=1e-3,3e-3', '--pilot_steps=5']
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


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the command asks of `train_cell`, by cell; the cell of linear attention fails."""
    sets = [f'--config.examples.{split}=listops:rows=20:length=8-30' for split in ('train', 'dev', 'test')]
    words = [*LINE, f'--workdir={tmp_path / "grid"}', f'--config.examples.cache={tmp_path / "cache"}', *sets]
    monkeypatch.setattr('sys.argv', words)
    asked: dict[str, Any] = {}

    def train_cell(grid: module.Grid, row: str, column: str) -> dict[str, Any]:
        asked[column] = grid
        if column == 'linear':
            raise MemoryError('no room')
        (grid.folder(row, column) / 'cell.json').write_text(json.dumps(CELL))
        return CELL

    monkeypatch.setattr(module, 'train_cell', train_cell)
    monkeypatch.setattr(module, 'share_programs', lambda: None)
    known = set(flags.FLAGS)
    yield asked
    for name in set(flags.FLAGS) - known:  # of fields that were named
        delattr(flags.FLAGS, name)
    for name in known:
        flags.FLAGS[name].unparse()
    flags.FLAGS.unparse_flags()


@pytest.mark.filterwarnings('ignore:the load_module')  # of ml_collections
def test_yardsticks_alone(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr('sys.argv', [*sys.argv, '--yardsticks'])
    train_grid.main()
    found = json.loads(capsys.readouterr().out)
    assert list(found['listops_short']) == ['majority', 'root', 'root_digits'] and not asked


@pytest.mark.filterwarnings('ignore:the load_module')  # of ml_collections
def test_cells_seeds_rates_and_files(asked: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture):
    with pytest.raises(RunError, match='^1 of 2 cells failed: listops_short,linear$'):
        train_grid.main()
    grid = asked['full']
    assert list(grid.cells) == [('listops_short', 'full'), ('listops_short', 'linear')]
    assert grid.cells['listops_short', 'linear']['train']['steps'] == 7
    assert (grid.seeds, grid.pilots) == (['0', '1'], ((1e-3, 3e-3), 5))
    content = json.loads((tmp_path / 'grid' / 'grid.json').read_text())
    assert content['cells'] == {'listops_short': {'full': CELL, 'linear': {'error': 'no room'}}}
    assert list(content['yardsticks']['listops_short']) == ['majority', 'root', 'root_digits']
    assert '| linear | failed: no room |' in (tmp_path / 'grid' / 'grid.md').read_text()
    assert (tmp_path / 'grid' / 'grid.svg').is_file()
    [*_, last] = capsys.readouterr().out.splitlines()
    assert json.loads(last) == {'cells': 2, 'failed': ['listops_short,linear']}
