"""Tests a grid of two tasks by two mechanisms: training, resuming, a single test, the summary, and refused grids."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from configs.arena import get_config
from efficient_attention.errors import InputError, RunStopped, one_line
from efficient_attention.experiments import grid as module
from efficient_attention.experiments.grid import (
    Grid,
    LearningRateSweep,
    read_cells,
    requested_and_tested_seeds,
    train_grid,
    training_speed,
    write_cell_error,
)
from efficient_attention.experiments.grid_configs import add_cell_metadata, check_cells_unchanged
from efficient_attention.tasks.registry import make_task
from efficient_attention.training.fill_config import fill_config
from efficient_attention.training.state import NonFiniteTrainingError
from efficient_attention.workdir.metrics import read_metrics
from tests.training.shared_programs import shared_programs  # noqa: F401  a fixture

pytestmark = pytest.mark.usefixtures('shared_programs')
SETS = {'listops_short': 'listops:rows=16:length=8-30', 'passages': 'passages:rows=16:length=30:source=stdlib'}


def values_of(row: str, column: str, folder: Path, **fields: Any) -> dict[str, Any]:
    """Returns a cell's config, made so small that it trains in seconds."""
    config = get_config(f'{row},{column}')
    small = {'model.width': 8, 'model.layers': 1, 'model.feed_forward_width': 8, 'examples.buckets': (30,)}
    small |= {'data.length': 30, 'model.max_length': 30, 'examples.cache': str(folder / 'cache'), 'train.steps': 3}
    small |= {f'examples.{split}': SETS[row] for split in ('train', 'dev', 'test')}
    small |= {'train.batch_size': 8, 'optimizer.warmup_steps': 0, 'train.log_every_steps': 3, 'eval.batch_size': 16}
    # Optax's bias correction raises Python floats to int32 counts, which strict promotion refuses
    config.update_from_flattened_dict(small | {'optimizer.bias_correction': False} | fields)
    return config.to_dict()


def cells_of(folder: Path, rows: tuple[str, ...], columns: tuple[str, ...], **fields: Any) -> dict:
    return {(row, column): values_of(row, column, folder, **fields) for row in rows for column in columns}


@pytest.fixture(scope='module')
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Grid, dict[str, Any]]:
    folder = tmp_path_factory.mktemp('grid')
    cells = cells_of(folder, ('listops_short', 'passages'), ('full', 'linear'))
    grid = Grid(cells, folder / 'grid', ['0'])
    return grid, train_grid(grid)


def test_every_cell_is_trained_and_tested(trained: tuple[Grid, dict[str, Any]]):
    grid, found = trained
    assert {(row, column) for row in found for column in found[row]} == set(grid.cells)
    for row, columns in found.items():
        for column, cell in columns.items():
            workdir = grid.folder(row, column) / 'seed_0'
            assert cell['seeds']['0']['test'] == json.loads((workdir / 'test.json').read_text())
            assert cell['mean']['accuracy'] == cell['seeds']['0']['test']['accuracy']
            assert cell['seeds']['0']['test']['fine_tuning_weight'] == 16
            assert cell['steps'] == 3 == read_metrics(workdir)[-1]['step']
            assert cell['steps_per_second'] > 0 and cell['temporary_bytes'] > 0 and cell['parameters'] > 0
        rows = [
            {name: one for name, one in cell['shared_fields'].items() if 'rows.' in name} for cell in columns.values()
        ]
        assert rows[0] == rows[1] and list(rows[0]) == ['rows.train', 'rows.dev', 'rows.test']
    assert found == read_cells(grid.workdir)


def test_cells_of_a_row_read_the_same_rows(trained: tuple[Grid, dict[str, Any]]):
    """All cells of a row read the same examples in the same order, also where attention depends on the length; digests
    are equal.
    """
    grid, _ = trained
    more = cells_of(grid.workdir.parent, ('listops_short',), ('bigbird', 'lsh'))
    for row in ('listops_short', 'passages'):
        found = []
        for values in [values for (other, _), values in (grid.cells | more).items() if other == row]:
            filled = fill_config(values)
            task = make_task(filled.config, filled.examples)
            batches = task.training_batches(0, 3, 0, 1)
            found.append((task.fingerprint, [batch['index'].tolist() for batch in batches]))
        assert len(found) == (4 if row == 'listops_short' else 2) and all(one == found[0] for one in found)
        assert len({tuple(index) for index in found[0][1]}) == 3


def test_a_finished_grid_is_read_and_not_trained(trained: tuple[Grid, dict[str, Any]], monkeypatch: pytest.MonkeyPatch):
    grid, found = trained
    monkeypatch.setattr(module, 'fill_config', None)  # the data of a finished grid is not opened either
    assert train_grid(grid) == found


def forget(grid: Grid) -> None:
    for path in grid.workdir.glob('*/*/cell.json'):
        path.unlink()


def test_a_cell_whose_last_step_is_missing_is_read_from_its_workdir(
    trained: tuple[Grid, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    grid, found = trained
    monkeypatch.setattr(module, 'evaluate_workdir', None)  # the test split must not be scored a second time
    (grid.folder('passages', 'linear') / 'cell.json').unlink()
    assert train_grid(grid) == found


def test_a_further_seed_that_fails_stands_beside_the_result(
    trained: tuple[Grid, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    grid, found = trained

    def fails(config: Any, workdir: Path, **_: Any) -> None:
        del config
        if workdir.name == 'seed_1':
            raise MemoryError('no room')

    monkeypatch.setattr(module, 'train', fails)
    train_grid(dataclasses.replace(grid, seeds=('0', '1')))
    known = read_cells(grid.workdir)
    for row, columns in known.items():
        for column, result in columns.items():
            assert result == found[row][column] | {'failed_seed': 'MemoryError: no room'}
            (grid.folder(row, column) / 'error.txt').unlink()


def test_a_failed_cell_is_named_and_the_others_go_on(
    trained: tuple[Grid, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capfd
):
    grid, found = trained

    def fails(config: Any, workdir: Path, **opened: Any) -> dict[str, float]:
        del config, opened
        if 'full' in workdir.parts:
            raise MemoryError('no room')
        return {}

    monkeypatch.setattr(module, 'train', fails)
    forget(grid)
    again = train_grid(grid)
    assert again['listops_short'] == {
        'full': {'error': 'MemoryError: no room'},
        'linear': found['listops_short']['linear'],
    }
    assert 'error: passages, full: no room' in capfd.readouterr().err
    text = (grid.folder('passages', 'full') / 'error.txt').read_text()
    assert 'Traceback' in text and text.endswith('MemoryError: no room\n')
    assert read_cells(grid.workdir) == again  # later commands need the errors for their tables


def test_an_error_of_jax_is_named_by_its_first_line(tmp_path: Path):
    """The last line of its traceback is a note on omitted frames, or one of the allocator's lines."""
    (tmp_path / 'recall/full').mkdir(parents=True)
    with pytest.raises(TypeError) as caught:
        jax.jit(lambda x: x @ jnp.zeros(3))(jnp.zeros(2))
    for error in (caught.value, RuntimeError('RESOURCE_EXHAUSTED: no room\nin use: 12')):
        write_cell_error(tmp_path / 'recall/full', error)
        assert read_cells(tmp_path)['recall']['full'] == {'error': f'{type(error).__name__}: {one_line(error)}'}
    assert one_line(caught.value).startswith('dot_general requires')
    (tmp_path / 'recall/full/error.txt').write_text('Traceback (most recent call last):\n  ...\nx.MemoryError: full\n')
    assert read_cells(tmp_path)['recall']['full'] == {'error': 'MemoryError: full'}  # the format of earlier versions


def test_a_stop_ends_the_grid(trained: tuple[Grid, dict[str, Any]], monkeypatch: pytest.MonkeyPatch):
    def stops(*_: Any, **__: Any) -> dict[str, float]:
        raise RunStopped

    monkeypatch.setattr(module, 'train', stops)
    forget(trained[0])
    with pytest.raises(RunStopped):
        train_grid(trained[0])


def test_a_workdir_of_another_config_is_refused(trained: tuple[Grid, dict[str, Any]]):
    grid, _ = trained
    folder = grid.workdir.parent
    changed = cells_of(folder, ('listops_short',), ('full',), **{'train.steps': 4})
    with pytest.raises(InputError, match=r'listops_short/full was made with train\.steps = 3, now it is 4; name a new'):
        train_grid(Grid(changed, grid.workdir, ['0']))


def test_cells_of_a_row_must_be_equal_in_what_they_read(tmp_path: Path):
    cells = cells_of(tmp_path, ('listops_short',), ('full', 'linear'))
    cells['listops_short', 'linear']['train']['batch_size'] = 4
    with pytest.raises(
        InputError, match=r'^listops_short: train\.batch_size differs between the columns full and linear'
    ):
        train_grid(Grid(cells, tmp_path / 'grid', ['0']))
    assert not (tmp_path / 'grid').exists()
    with pytest.raises(InputError, match=r'^--seeds is'):
        train_grid(Grid(cells, tmp_path / 'grid', ['one']))


def test_pilots_choose_the_learning_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cells = cells_of(tmp_path, ('listops_short',), ('full',))
    rates = {}
    monkeypatch.setattr(module, 'parameters_and_step_memory', lambda *_: {})

    def train(config: Any, workdir: Path, **opened: Any) -> dict[str, float]:
        del opened
        if config.optimizer.learning_rate == 1e30:
            raise NonFiniteTrainingError('10 steps in a row were skipped')
        rates[workdir.name] = (config.optimizer.learning_rate, config.train.steps)
        return {}

    losses = {'pilot_0.001': 0.9, 'pilot_0.003': 0.4, 'pilot_0.01': math.nan, 'seed_0': 0.3}
    monkeypatch.setattr(module, 'train', train)
    monkeypatch.setattr(
        module, 'read_best_evaluation', lambda workdir, _: {'accuracy': 0.2, 'fine_tuning_loss': losses[workdir.name]}
    )
    monkeypatch.setattr(module, 'evaluate_workdir', lambda *_, **__: {'step': 3, 'accuracy': 0.3})
    grid = Grid(cells, tmp_path / 'grid', ['0'], LearningRateSweep((1e-3, 3e-3, 1e-2, 1e30), 2))
    (tmp_path / 'grid' / 'listops_short' / 'full' / 'seed_0').mkdir(parents=True)
    [cell] = train_grid(grid)['listops_short'].values()
    assert rates == {'pilot_0.001': (1e-3, 2), 'pilot_0.003': (3e-3, 2), 'pilot_0.01': (1e-2, 2), 'seed_0': (3e-3, 3)}
    assert cell['learning_rate'] == 3e-3 and cell['pilots'] == {'0.001': 0.9, '0.003': 0.4, '0.01': None, '1e+30': None}
    monkeypatch.setattr(module, 'fill_config', None)  # all results are known, also of the rates that were not chosen
    assert train_grid(grid)['listops_short']['full'] == cell
    assert train_grid(dataclasses.replace(grid, pilots=LearningRateSweep()))['listops_short']['full'] == cell
    monkeypatch.setattr(module, 'fill_config', fill_config)
    # as if a stop had come before the file was written
    (tmp_path / 'grid' / 'listops_short' / 'full' / 'cell.json').unlink()
    monkeypatch.setattr(module, 'choose_learning_rate', None)
    assert train_grid(dataclasses.replace(grid, pilots=LearningRateSweep()))['listops_short']['full'] == cell
    for other in (LearningRateSweep((1e-3, 3e-3), 2), LearningRateSweep(grid.pilots.rates, 4)):
        with pytest.raises(
            InputError, match='full: the trial runs before were 0.001, 0.003, 0.01, 1e.30 in 2 steps, now'
        ):
            train_grid(dataclasses.replace(grid, pilots=other))


EACH_STEP = {'train.steps': 2, 'eval.every_steps': 1, 'checkpoint.every_steps': 1}


def test_pilots_as_long_as_the_cell_choose_by_its_metric_and_are_its_first_run(tmp_path: Path):
    cells = cells_of(tmp_path, ('listops_short',), ('full',), **EACH_STEP)
    grid = Grid(cells, tmp_path / 'grid', ['0', '1'], LearningRateSweep((1e-3, 1e-1), 0))
    cell = train_grid(grid)['listops_short']['full']
    folder = grid.folder('listops_short', 'full')
    losing = min((1e-3, 1e-1), key=lambda rate: cell['pilots'][f'{rate:g}'])
    losing = losing if len(set(cell['pilots'].values())) == 2 else 1e-1  # of equal results the first rate is chosen
    assert cell['learning_rate'] != losing and cell['pilot_steps'] == 2
    assert cell['curves'].keys() == {'seed_0', 'seed_1', f'pilot_{losing:g}'}
    assert {tuple(curve['step']) for curve in cell['curves'].values()} == {(1, 2)}
    evaluations = [line['accuracy'] for line in read_metrics(folder / 'seed_0') if line['split'] == 'held_out']
    assert cell['curves']['seed_0']['accuracy'] == evaluations
    assert max(evaluations) == cell['pilots'][f'{cell["learning_rate"]:g}'] == cell['seeds']['0']['dev']['accuracy']
    (folder / 'cell.json').unlink()
    assert train_grid(grid)['listops_short']['full']['seeds'] == cell['seeds']  # no run is trained again


def test_speed_is_read_from_the_log(tmp_path: Path):
    lines = [
        {'step': step, 'split': 'train', 'steps_per_second': speed} for step, speed in ((10, 2.0), (20, 5.0), (25, 1.0))
    ]
    (tmp_path / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    assert training_speed(tmp_path) == (2.0, 10 / 2 + 10 / 5 + 5 / 1)
    assert training_speed(tmp_path / 'nowhere') == (0.0, 0.0)


def test_cells_that_another_command_has_made_must_be_equal_too(trained: tuple[Grid, dict[str, Any]]):
    grid, _ = trained
    cells = cells_of(grid.workdir.parent, ('listops_short',), ('local',), **{'train.steps': 4})
    line = r'^listops_short: train\.steps differs between the columns full and local; all cells of a row have'
    with pytest.raises(InputError, match=line):
        train_grid(Grid(cells, grid.workdir, ['0']))
    assert not grid.folder('listops_short', 'local').exists()


@pytest.mark.parametrize(
    'fields, line',
    [({'examples.test': ''}, 'examples.test is empty'), ({'eval.split': 'test'}, "eval.split is 'test'")],
)
def test_a_cell_needs_test_rows_that_choose_nothing(tmp_path: Path, fields: dict[str, Any], line: str):
    cells = cells_of(tmp_path, ('listops_short',), ('full',), **fields)
    with pytest.raises(InputError, match=f'^listops_short,full: {line}; a cell is chosen by examples.dev'):
        train_grid(Grid(cells, tmp_path / 'grid', ['0']))


def test_no_pilot_that_is_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def stops(*_: Any, **__: Any) -> dict[str, float]:
        raise NonFiniteTrainingError('10 steps in a row were skipped')

    monkeypatch.setattr(module, 'train', stops)
    cells = cells_of(tmp_path, ('listops_short',), ('full',))
    found = train_grid(Grid(cells, tmp_path / 'grid', ['0'], LearningRateSweep((1e30,), 2)))
    assert 'no trial run of the rates 1e+30 stayed finite' in found['listops_short']['full']['error']


def test_a_cell_that_was_refused_may_be_given_other_values(tmp_path: Path):
    cells = cells_of(tmp_path, ('listops_short',), ('full',), **{'data.tokenizer': 'fixed:bytes'})
    found = train_grid(Grid(cells, tmp_path / 'grid', ['0']))
    assert 'data.tokenizer has another vocabulary' in found['listops_short']['full']['error']
    cells = cells_of(tmp_path, ('listops_short',), ('full',))
    check_cells_unchanged(tmp_path / 'grid', add_cell_metadata(cells, ''))  # raises no error, as no run has begun


def test_seeds_that_a_cell_has_been_tested_with_count_on(tmp_path: Path):
    for seed in ('0', '7'):
        (tmp_path / f'seed_{seed}').mkdir()
    (tmp_path / 'seed_7' / 'test.json').write_text('{}')
    assert requested_and_tested_seeds(tmp_path, ['11', '2']) == ['2', '7', '11']
