"""Trains a grid of runs, with one task per row and one attention mechanism per column, and collects the results.

An interrupted grid resumes. A cell is trained with each seed. Its best checkpoint by the validation metric is scored
once on the test rows. Time and memory are recorded. If a cell fails, its error is reported and the other cells go on.
Several processes may train cells of one folder: each summarises all cells in the folder, and the workdir's lock
prevents two from training one cell.
"""

import dataclasses
import json
import logging
import math
import statistics
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from efficient_attention.atomic_files import write_atomically
from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.config.run import RunConfig
from efficient_attention.errors import RunError, RunStopped, one_line, show_error
from efficient_attention.experiments.grid_configs import (
    CELL,
    CHOICE,
    PILOT_SECONDS,
    Values,
    add_cell_metadata,
    check_cells_unchanged,
    check_has_test_split,
    check_row_cells_comparable,
    check_sweep_unchanged,
    read_cell_json,
    read_started_cell_configs,
    read_sweep_choice,
    shared_fields,
    step_fields,
    write_cell_configs,
)
from efficient_attention.experiments.multi_seed_runs import check_seeds, enable_compilation_cache, mean_and_deviation
from efficient_attention.inference.evaluate_workdir import evaluate_workdir
from efficient_attention.objectives.fine_tuning import TERM
from efficient_attention.training.fill_config import FilledConfig, fill_config
from efficient_attention.training.loop import train
from efficient_attention.training.run import build_run
from efficient_attention.training.state import NonFiniteTrainingError
from efficient_attention.training.step import jit_train_step
from efficient_attention.workdir.checkpoint_reader import CheckpointReader, read_best_evaluation
from efficient_attention.workdir.environment import describe_machine
from efficient_attention.workdir.metrics import FILE_NAME as METRICS
from efficient_attention.workdir.metrics import read_metrics
from efficient_attention.workdir.process_agreement import require_in_all_processes

LOG = logging.getLogger(__name__)
TEST = 'test.json'  # file with test metrics, in the workdir of each seed
ERROR = 'error.txt'  # file with the error of a failed cell, in the folder of the cell
PILOT_METRIC = f'{TERM}_loss'
FULL = 'full'  # name of the grid column with full attention, to which the other columns are compared


class LearningRateSweep(NamedTuple):
    """A learning-rate sweep of one grid cell: one trial run per learning rate. The cell uses the rate with the best
    validation result.

    Attributes:
        rates: learning rates to try; () = the config's rate without trial runs.
        steps: steps per trial run; 0 = as many as the cell. Such a run is evaluated like the cell, and the best one
            becomes the cell's run with the first seed.
    """

    rates: tuple[float, ...] = ()
    steps: int = 150


@dataclasses.dataclass(frozen=True)
class Grid:
    """The plan of a grid of training runs: the config of each cell, the seeds, and the learning-rate sweep.

    Attributes:
        cells: (row, column) -> the config values from a config file.
        workdir: the grid's folder; a run is in <workdir>/<row>/<column>/seed_<n>.
        seeds: whole numbers as text.
        pilots: trial runs that choose each cell's learning rate.
        size: the name of the cells' sizes, '' = the config file's default.
        has_own_sizes: whether cells of a row may differ in size.
        overrides: {dotted field: value} that replace values of the config file in all cells.
    """

    cells: Mapping[tuple[str, str], Values]
    workdir: Path
    seeds: Sequence[str]
    pilots: LearningRateSweep = LearningRateSweep()
    size: str = ''
    has_own_sizes: bool = False
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def folder(self, row: str, column: str) -> Path:
        """Returns the folder of a grid cell."""
        return self.workdir / row / column


def train_grid(grid: Grid) -> dict[str, Any]:
    """Trains every cell of a grid; returns {row: {column: the result of `train_cell`, or {'error': line} if the cell
    failed}}.

    Raises:
        InputError: seeds are invalid, cells of a row differ in data, steps or sizes, or the workdir has other configs.
        RunStopped: a stop signal ended a run; the same call resumes.
    """
    check_seeds(grid.seeds)
    check_has_test_split(grid.cells)
    cells = add_cell_metadata(grid.cells, grid.size, grid.overrides)
    check_cells_unchanged(grid.workdir, cells)
    check_sweep_unchanged(grid.workdir, cells, grid.pilots.rates, grid.pilots.steps)
    check_row_cells_comparable(
        read_started_cell_configs(grid.workdir, {row for row, _ in cells}) | cells, has_own_sizes=grid.has_own_sizes
    )
    write_cell_configs(grid.workdir, cells)
    enable_compilation_cache()
    found: dict[str, Any] = {}
    for row, column in grid.cells:
        try:
            result = train_cell(grid, row, column, cells[row, column])
        except (RunStopped, KeyboardInterrupt):
            raise
        except Exception as error:  # After any error in one grid cell, the other cells are still trained.
            show_error(RunError(f'{row}, {column}: {one_line(error)}'))
            result = {'error': format_error(error)}
            write_cell_error(grid.folder(row, column), error)
        found.setdefault(row, {})[column] = result
    return found


def train_cell(grid: Grid, row: str, column: str, values: Values) -> dict[str, Any]:
    """Trains and tests one grid cell with each seed, and returns the result of the cell. `values` are the cell's config
    values from `add_cell_metadata`.

    Returns:
        'seeds': {seed: {'dev': metrics of the best evaluation, 'test': metrics}};
        'mean' and 'deviation' of the test metrics over seeds;
        'metric' and 'mode', which define the best evaluation;
        'learning_rate', 'pilots': {rate: loss, or the metric of trial runs as long as the cell's}, 'pilot_steps',
        'pilot_seconds' of trial runs that became no seed's run;
        'curves': {folder: evaluations};
        'parameters';
        'steps', 'steps_per_second', 'seconds' of training, means over seeds;
        'temporary_bytes' of a step with rows of full length;
        'machine';
        'shared_fields' and 'step_fields' of the config.
    """
    folder = grid.folder(row, column)
    if known := read_finished_cell(folder, grid):
        return known
    filled = fill_config(grid.cells[row, column])
    choice = read_sweep_choice(folder)
    if not choice:
        rate, pilots = choose_learning_rate(filled, folder, grid)
        choice = {'learning_rate': rate, 'pilots': pilots}
        choice |= {'pilot_steps': grid.pilots.steps or filled.config.train.steps}
        # A trial run of full length with the chosen rate becomes the first seed's run, so it adds no trial time.
        first = '' if grid.pilots.steps else f'{rate:g}'
        choice |= {PILOT_SECONDS: sum(training_speed(folder / f'pilot_{rate}')[1] for rate in pilots if rate != first)}
        if pilots and jax.process_index() == 0:
            write_atomically(folder / CHOICE, json.dumps(choice) + '\n')
    if choice['pilots'] and not grid.pilots.steps:
        keep_sweep_run_as_seed(folder, choice['learning_rate'], grid.seeds[0])
    optimizer = {'learning_rate': choice['learning_rate']}
    filled = filled._replace(config=with_fields(filled.config, optimizer=optimizer))
    chosen = requested_and_tested_seeds(folder, grid.seeds)
    seeds = {seed: train_and_test_seed(filled, folder / f'seed_{seed}', seed) for seed in chosen}
    speeds = [training_speed(folder / f'seed_{seed}') for seed in chosen]
    result = {
        'seeds': seeds,
        **mean_and_deviation([seeds[seed]['test'] for seed in chosen]),
        **choice,
        'metric': filled.config.checkpoint.best_metric,
        'mode': filled.config.checkpoint.best_mode,
        'steps': filled.config.train.steps,
        'steps_per_second': statistics.fmean(speed for speed, _ in speeds),
        'seconds': statistics.fmean(seconds for _, seconds in speeds),
        'curves': evaluation_curves(folder),
        **parameters_and_step_memory(filled, folder),
        'machine': describe_machine(folder / f'seed_{seed}' for seed in chosen),
        'shared_fields': shared_fields(values, has_own_sizes=grid.has_own_sizes),
        'step_fields': step_fields(grid.cells[row, column]),
    }
    if jax.process_index() == 0:
        write_atomically(folder / CELL, json.dumps(result, indent=2) + '\n')
        (folder / ERROR).unlink(missing_ok=True)
    return result


def write_cell_error(folder: Path, error: Exception) -> None:
    """Writes the message and the traceback of an error into a file in the cell's folder."""
    if jax.process_index() == 0:
        write_atomically(folder / ERROR, f'{format_error(error)}\n\n' + ''.join(traceback.format_exception(error)))


def format_error(error: Exception) -> str:
    """Returns an error's type and message in one line."""
    return f'{type(error).__name__}: {one_line(error)}'


def read_finished_cell(folder: Path, grid: Grid) -> dict[str, Any]:
    """Returns the stored result of a finished cell; returns {} if the result is missing or lacks a requested seed.

    The runs of a finished cell are thus not opened again.
    """
    known = read_cell_json(folder / CELL) if (folder / CELL).is_file() else {}
    return known if known and known.get('seeds', {}).keys() >= set(grid.seeds) else {}


def choose_learning_rate(filled: FilledConfig, folder: Path, grid: Grid) -> tuple[float, dict[str, float | None]]:
    """Returns the learning rate of the best trial run, and the result of each rate. Without trial runs, returns the
    config's learning rate.

    Short trial runs are compared by their validation loss: after so few steps, the best accuracy at every rate is often
    the accuracy of the most frequent class. Runs as long as the cell are compared by the metric that chooses a cell's
    checkpoint. A rate with too many non-finite steps gets None.

    Raises:
        RunError: every rate has too many non-finite steps.
    """
    pilots, checkpoint = grid.pilots, filled.config.checkpoint
    if not pilots.rates:
        return filled.config.optimizer.learning_rate, {}
    name, mode = (PILOT_METRIC, 'min') if pilots.steps else (checkpoint.best_metric, checkpoint.best_mode)
    found = dict[str, float | None]()
    for rate in pilots.rates:
        found[f'{rate:g}'] = None
        workdir = folder / f'pilot_{rate:g}'
        pilot = sweep_run_config(filled.config, rate, pilots.steps, grid.seeds[0])
        try:
            train(pilot, workdir, examples=filled.examples, pretrained=filled.pretrained)
        except NonFiniteTrainingError as error:
            show_error(RunError(f'{workdir}: {one_line(error)}; this rate is not used'))
            continue
        number = read_best_evaluation(workdir, checkpoint)[name]
        if not math.isnan(number):
            found[f'{rate:g}'] = number
    good = {rate: known for rate in pilots.rates if (known := found[f'{rate:g}']) is not None}
    if not good:
        raise RunError(f'{folder}: no trial run of the rates {", ".join(found)} stayed finite')
    sign = 1 if mode == 'min' else -1
    return min(good, key=lambda rate: sign * good[rate]), found


def sweep_run_config(config: RunConfig, rate: float, steps: int, first_seed: str) -> RunConfig:
    """Returns the config of one trial run of a learning-rate sweep. With `steps` 0, this is the cell's config with this
    learning rate and the first seed.
    """
    if not steps:
        return with_fields(config, optimizer={'learning_rate': rate}, train={'seed': int(first_seed)})
    return with_fields(
        config,
        optimizer={'learning_rate': rate, 'warmup_steps': min(config.optimizer.warmup_steps, steps // 3)},
        train={'steps': steps},
        checkpoint={'every_steps': steps},
        eval={'every_steps': steps},
    )


def keep_sweep_run_as_seed(folder: Path, rate: float, seed: str) -> None:
    """Renames the workdir of the best trial run, so that it becomes the run of a seed.

    The trial run must have as many steps as the runs of the seeds.
    """
    require_in_all_processes(lambda: None)  # This call waits until every process has read the trial run.
    pilot, workdir = folder / f'pilot_{rate:g}', folder / f'seed_{seed}'
    if jax.process_index() == 0 and pilot.is_dir() and not workdir.exists():
        pilot.rename(workdir)


def evaluation_curves(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Returns the evaluation metrics over training of each run of a cell, including trial runs, as {'seed_0': {'step':
    [...], ...}}.
    """
    curves = {}
    for workdir in sorted(path.parent for path in folder.glob(f'*/{METRICS}')):
        lines = CheckpointReader(workdir).evaluations()
        names = [name for name in (lines[0] if lines else {}) if name != 'split']
        curves[workdir.name] = {name: [line.get(name, math.nan) for line in lines] for name in names}
    return curves


def requested_and_tested_seeds(folder: Path, seeds: Sequence[str]) -> list[str]:
    """Returns one ascending list of the requested seeds and of the seeds that earlier commands have tested in this grid
    cell.
    """
    before = {path.parent.name.removeprefix('seed_') for path in folder.glob(f'seed_*/{TEST}')}
    return sorted({*seeds, *before}, key=int)


def train_and_test_seed(filled: FilledConfig, workdir: Path, seed: str) -> dict[str, dict[str, float]]:
    """Trains a grid cell with one seed, and tests its best checkpoint. If it was tested earlier, the test metrics are
    read from their file.
    """
    config = with_fields(filled.config, train={'seed': int(seed)})
    train(config, workdir, examples=filled.examples, pretrained=filled.pretrained)
    dev = read_best_evaluation(workdir, config.checkpoint)
    path = workdir / TEST
    if not path.is_file():
        metrics = evaluate_workdir(workdir, checkpoint='best', split='test')
        if jax.process_index() == 0:
            write_atomically(path, json.dumps(metrics) + '\n')
        return {'dev': dev, 'test': {name: float(value) for name, value in metrics.items()}}
    return {'dev': dev, 'test': read_json_file(path)}


def training_speed(workdir: Path) -> tuple[float, float]:
    """Returns a run's median training steps per second, and its training seconds without evaluations, both from the
    metrics log.
    """
    lines = [line for line in read_metrics(workdir) if line['split'] == 'train' and line.get('steps_per_second')]
    if not lines:
        return 0.0, 0.0
    steps = [line['step'] for line in lines]
    taken = [after - before for before, after in zip([0, *steps[:-1]], steps, strict=True)]
    seconds = sum(count / line['steps_per_second'] for count, line in zip(taken, lines, strict=True))
    return statistics.median(line['steps_per_second'] for line in lines), seconds


def parameters_and_step_memory(filled: FilledConfig, folder: Path) -> dict[str, int]:
    """Returns two sizes of a grid cell's model: its number of 'parameters', and the 'temporary_bytes' of a training
    step with rows of full length.

    If the cell already has a result, both numbers are read from it. 'parameters' counts the encoder and its head.
    """
    path = folder / CELL
    if path.is_file():
        known = read_cell_json(path)
        return {name: known[name] for name in ('parameters', 'temporary_bytes')}
    run = build_run(filled.config, examples=filled.examples)
    batch = next(run.task.training_batches(0, 1, jax.process_index(), jax.process_count()))
    length, rows = filled.config.data.length, run.put_batch_on_devices(batch)

    def full_length_spec(name: str, array: jax.Array) -> jax.ShapeDtypeStruct:
        is_of_tokens = array.shape[1:] == rows['tokens'].shape[1:]
        shape = (*array.shape[:-1], length) if is_of_tokens and name != 'weights' else array.shape
        return jax.ShapeDtypeStruct(shape, array.dtype, sharding=array.sharding)

    shapes = {name: full_length_spec(name, array) for name, array in rows.items()}
    step: Any = jit_train_step(run)
    memory = step.lower(run.abstract_state, shapes).compile().memory_analysis()
    return {'parameters': run.parameter_count(), 'temporary_bytes': int(memory.temp_size_in_bytes)}


def with_fields(config: RunConfig, **groups: Mapping[str, Any]) -> RunConfig:
    """Returns the config with some fields replaced, given as {field: value} per config group."""
    changed = {name: dataclasses.replace(getattr(config, name), **fields) for name, fields in groups.items()}
    return dataclasses.replace(config, **changed)


def read_cells(workdir: Path) -> dict[str, dict[str, Any]]:
    """Returns {row: {column: result}} of all cells in a grid's folder that have a result or an error.

    Cells that other processes have trained are included. A failed cell without a result is {'error': line}. A cell that
    failed with a further seed has its result and 'failed_seed': line.
    """
    found: dict[str, dict[str, Any]] = {}
    folders = {path.parent for name in (CELL, ERROR) for path in workdir.glob(f'*/*/{name}')}
    for folder in sorted(folders):
        has_result = (folder / CELL).is_file()
        result = read_cell_json(folder / CELL) if has_result else {}
        if (folder / ERROR).is_file():
            result['failed_seed' if has_result else 'error'] = read_cell_error(folder)
        found.setdefault(folder.parent.name, {})[folder.name] = result
    return found


def read_cell_error(folder: Path) -> str:
    """Returns the type and message of the error that ended a cell, from the cell's error file.

    If the file holds only a traceback, type and message are in its last line.
    """
    lines = (folder / ERROR).read_text(encoding='utf-8').strip().splitlines()
    if lines and not lines[0].startswith('Traceback'):
        return lines[0]
    kind, _, text = (lines[-1] if lines else 'unknown').partition(': ')
    return f'{kind.rpartition(".")[2]}: {text}'
