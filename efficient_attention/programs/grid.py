r"""Trains many runs, one for each pair of a task and a mechanism, and summarises their test results in a table.

    efficient-attention grid --config configs/arena.py --rows listops_short,text --columns full,linear \
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
column. `--yardsticks` only prints baseline scores of the tasks: a linear model, and the best single word.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_flags

from efficient_attention.commands.command_line import parse_flags
from efficient_attention.commands.flags import define_config, define_workdir
from efficient_attention.errors import InputError, RunError, show_error
from efficient_attention.processes.allocator import tune_allocator
from efficient_attention.processes.phase_log import PREPARATION, note_phase


def main() -> None:
    """Reads the flags, trains the cells, and prints the table of results."""
    options = define_flags()
    parse_flags(sys.argv, ('config', 'workdir', 'rows'), options=options, about=__doc__)
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
    holder = options['config']
    overrides = config_flags.get_override_values(holder)
    check_no_seed_override(overrides)
    check_folder_kind_and_parents(options.workdir, GRID)
    file, size = config_flags.get_config_filename(holder), options.size
    cells = make_cells(file, overrides, options.rows, options.columns, size)
    if options.yardsticks:
        print(json.dumps(compute_baselines(cells, options.workdir)))
        return
    pilots = LearningRateSweep(parse_learning_rates(options.rates), options.pilot_steps)
    changed = effective_overrides(overrides, make_cells(file, {}, options.rows, options.columns, size), cells)
    grid = Grid(cells, options.workdir, options.seeds, pilots, size, has_column_specific_sizes(file, size), changed)
    found = train_grid(grid)
    failed = {(row, column): cell for row in found for column, cell in found[row].items() if 'error' in cell}
    known = read_cells(options.workdir)
    yardsticks = read_known_baselines(options.workdir)
    of_others = read_started_cell_configs(options.workdir, known.keys() - {row for row, _ in cells} - yardsticks.keys())
    computed, unread = compute_all_baselines(of_others | cells, options.workdir)
    yardsticks |= computed
    write_grid(known, yardsticks, options.workdir)
    print(grid_table(known, yardsticks))
    print(json.dumps({'cells': len(cells), 'failed': [','.join(cell) for cell in failed]}))
    if failed:
        raise RunError(f'{len(failed)} of {len(cells)} cells failed: {"; ".join(map(",".join, failed))}')
    if unread:
        raise RunError(f'no baselines for {", ".join(unread)}')


def compute_all_baselines(
    cells: Mapping[tuple[str, str], Mapping[str, Any]], workdir: Path
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
            found |= compute_baselines({cell: values for cell, values in cells.items() if cell[0] == row}, workdir)
        except InputError as error:
            show_error(RunError(f'{row}: no baselines: {error}'))
            unread.append(row)
    return found, unread


def define_flags() -> flags.FlagValues:
    """Defines the command-line flags of this program, and returns them."""
    options = flags.FlagValues()
    define_config('Config file whose argument is <row>,<column>.', options)
    define_workdir('Folder that gets the workdirs of all cells.', options)
    flags.DEFINE_list('rows', None, 'Tasks, separated by commas.', flag_values=options)
    columns = 'Mechanisms, separated by commas; the table compares each with full.'
    flags.DEFINE_list('columns', ['full'], columns, flag_values=options)
    flags.DEFINE_list('seeds', ['0'], 'Seeds, separated by commas.', flag_values=options)
    rates = 'Learning rates to choose from by trial runs; none = the rate of the config.'
    flags.DEFINE_list('rates', [], rates, flag_values=options)
    size = 'Third part of the config argument: the size of the cells, such as paper or code in arena.py.'
    flags.DEFINE_string('size', '', size, flag_values=options)
    yardsticks = 'Only print the baselines of the rows; train nothing.'
    flags.DEFINE_bool('yardsticks', False, yardsticks, flag_values=options)
    pilots = 'Steps of a trial run; 0 = as many as the cell.'
    flags.DEFINE_integer('pilot_steps', 150, pilots, lower_bound=0, flag_values=options)
    return options
