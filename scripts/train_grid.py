"""Trains many runs, one for each pair of a task and a mechanism, and summarises their test results in a table.

    python scripts/train_grid.py --config configs/arena.py --rows listops_short,text --columns full,linear \
      --seeds 0,1 --workdir runs/arena

Tasks are rows of the table, mechanisms are columns, and each pair is a cell. The argument of the config file is
`<row>,<column>`, with `--size` also `<row>,<column>,<size>`. Each cell has a workdir per seed,
<workdir>/<row>/<column>/seed_<n>. The same command resumes unfinished cells. If a cell fails, the command prints its
name and continues; error.txt in the cell's folder says where, and the exit code is 1.

With `--rates`, each cell first chooses its learning rate by short trial runs; `--pilot_steps=0` makes them as long as
the cell. Without `--rates`, a cell keeps the rate that it chose before.

Output files are grid.json, grid.md and grid.svg, with all cells in the folder, also cells of other commands. So two
commands may share a folder and train different columns at the same time, or other rows later. Failed cells are listed
with their error.

`--config.<field>=<value>` changes a field in all cells; {row} and {column} in a text value become the cell's row and
column. `--yardsticks` only prints baseline scores of the rows: linear models and single words.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.
    catch_stop_signals(keeps_freed_memory=True)

import json
import sys
from collections.abc import Mapping
from typing import Any

from absl import flags
from ml_collections import config_flags

from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.commands.flags import define_workdir
from efficient_attention.errors import InputError, RunError, show_error
from efficient_attention.processes.allocator import tune_allocator
from efficient_attention.processes.phase_log import PREPARATION, note_phase

CONFIG = config_flags.DEFINE_config_file('config', None, 'Config file whose argument is <row>,<column>.')
WORKDIR = define_workdir('Folder that gets the workdirs of all cells.')
ROWS = flags.DEFINE_list('rows', None, 'Tasks, separated by commas.')
COLUMNS = flags.DEFINE_list('columns', ['full'], 'Mechanisms, separated by commas; the others are compared with full.')
SEEDS = flags.DEFINE_list('seeds', ['0'], 'Seeds, separated by commas.')
RATES = flags.DEFINE_list('rates', [], 'Learning rates to choose from by trial runs; none = the rate of the config.')
SIZE = flags.DEFINE_string(
    'size',
    '',
    'Size of the cells: third part of the config argument, such as paper or code in arena.py; default: no such part.',
)
YARDSTICKS = flags.DEFINE_bool('yardsticks', default=False, help='Only print the baselines of the rows; train nothing.')
PILOT_STEPS = flags.DEFINE_integer('pilot_steps', 150, 'Steps of a trial run; 0 = as many as the cell.', lower_bound=0)


def main() -> None:
    """Reads the flags, trains the cells, and prints the table of results."""
    parse_flags(sys.argv, required=('config', 'workdir', 'rows'))
    from efficient_attention.experiments.grid import (
        Grid,
        LearningRateSweep,
        read_cells,
        train_grid,
    )  # imported late, so that --help and flag errors are fast
    from efficient_attention.experiments.grid_cells import (
        compute_baselines,
        effective_overrides,
        has_column_specific_sizes,
        make_cells,
        parse_learning_rates,
    )
    from efficient_attention.experiments.grid_configs import read_started_cell_configs
    from efficient_attention.experiments.grid_report import grid_table, read_known_baselines, write_grid
    from efficient_attention.experiments.multi_seed_runs import check_no_seed_override
    from efficient_attention.workdir.folder_kind import GRID, check_folder_kind_and_parents

    note_phase(PREPARATION)
    tune_allocator()
    holder = flags.FLAGS['config']
    overrides = config_flags.get_override_values(holder)
    check_no_seed_override(overrides)
    check_folder_kind_and_parents(WORKDIR.value, GRID)
    file, size = config_flags.get_config_filename(holder), SIZE.value
    cells = make_cells(file, overrides, ROWS.value, COLUMNS.value, size)
    if YARDSTICKS.value:
        print(json.dumps(compute_baselines(cells, WORKDIR.value)))
        return
    pilots = LearningRateSweep(parse_learning_rates(RATES.value), PILOT_STEPS.value)
    changed = effective_overrides(overrides, make_cells(file, {}, ROWS.value, COLUMNS.value, size), cells)
    grid = Grid(cells, WORKDIR.value, SEEDS.value, pilots, size, has_column_specific_sizes(file, size), changed)
    found = train_grid(grid)
    failed = {(row, column): cell for row in found for column, cell in found[row].items() if 'error' in cell}
    known = read_cells(WORKDIR.value)
    yardsticks = read_known_baselines(WORKDIR.value)
    of_others = read_started_cell_configs(WORKDIR.value, known.keys() - {row for row, _ in cells} - yardsticks.keys())
    computed, unread = compute_all_baselines(of_others | cells)
    yardsticks |= computed
    write_grid(known, yardsticks, WORKDIR.value)
    print(grid_table(known, yardsticks))
    print(json.dumps({'cells': len(cells), 'failed': [','.join(cell) for cell in failed]}))
    if failed:
        raise RunError(f'{len(failed)} of {len(cells)} cells failed: {"; ".join(map(",".join, failed))}')
    if unread:
        raise RunError(f'no baselines for {", ".join(unread)}')


def compute_all_baselines(
    cells: Mapping[tuple[str, str], Mapping[str, Any]],
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Computes the baselines of all tasks (table rows); prints an error for each task whose data cannot be read.

    Returns:
        {task: {baseline: score}}, and the tasks without baselines.
    """
    from efficient_attention.experiments.grid_cells import compute_baselines

    found: dict[str, dict[str, float]] = {}
    unread = []
    for row in dict.fromkeys(row for row, _ in cells):
        try:
            found |= compute_baselines(
                {cell: values for cell, values in cells.items() if cell[0] == row}, WORKDIR.value
            )
        except InputError as error:
            show_error(RunError(f'{row}: no baselines: {error}'))
            unread.append(row)
    return found, unread


if __name__ == '__main__':
    run_command(main)
