"""Joins tables of runs (grids) from several machines into one: prints it as Markdown, plots it and writes it.

    python scripts/join_grids.py runs/arena/grid.json other/arena/grid.json --output arena.json --picture arena.svg

Input files are a `grid.json` of `scripts/train_grid.py`, or earlier output of this command. A later file's cell
replaces the same cell of earlier files, but a failed cell never replaces a result. Without --output and --picture the
tables are only printed. --rows limits and orders the printed and plotted rows; --output always has all rows. --nospeed
leaves out steps per second, for cells that shared a device.
"""

from efficient_attention.processes.signal_thread import catch_stop_signals

if __name__ == '__main__':
    catch_stop_signals()  # Stop signals are handled from here on, so that Ctrl-C works during the slow imports.

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from efficient_attention.atomic_files import write_atomically
from efficient_attention.commands.command_line import parse_flags, run_command
from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.errors import InputError, one_line
from efficient_attention.experiments.grid_configs import OVERRIDES, ROWS, describe_field
from efficient_attention.experiments.grid_report import grid_picture, grid_table

Table = dict[str, dict[str, Any]]
YOUNGER = (ROWS, OVERRIDES)  # groups of config fields that older files do not record


def main() -> None:
    """Joins the grid files of the command line, writes the requested files, and prints the tables."""
    options = flags.FlagValues()
    flags.DEFINE_string('output', None, 'A file that ends in .json.', flag_values=options)
    flags.DEFINE_string('picture', None, 'A file that ends in .svg.', flag_values=options)
    flags.DEFINE_list('rows', [], 'Rows to print and plot, separated by commas; none = all.', flag_values=options)
    flags.DEFINE_bool('speed', True, 'Print steps per second.', flag_values=options)
    grids = parse_flags(sys.argv, options=options, words='GRID...')
    for name, ending in (('output', '.json'), ('picture', '.svg')):
        if options[name].value is not None and not options[name].value.endswith(ending):
            raise InputError(f'--{name} is {options[name].value}; it must end in {ending}')
    cells, yardsticks = merge_grids(map(Path, grids))
    shown = select_rows(cells, options.rows)
    picture = grid_picture(shown, yardsticks) if options.picture is not None else ''
    if options.output is not None:
        write_atomically(Path(options.output), json.dumps({'cells': cells, 'yardsticks': yardsticks}, indent=2) + '\n')
    if options.picture is not None:
        write_atomically(Path(options.picture), picture)
    print(grid_table(shown, yardsticks, with_speed=options.speed))


def select_rows(cells: Table, rows: Sequence[str]) -> Table:
    """Returns the table with only the given rows, in the given order; the whole table if no row is given."""
    for row in rows:
        if row not in cells:
            raise InputError(f'--rows names {row!r}; the files have {", ".join(cells)}')
    return {row: cells[row] for row in rows} if rows else cells


def merge_grids(paths: Iterable[Path]) -> tuple[Table, Table]:
    """Merges the grid files; returns all cells {row: {column: result}} and all baselines {row: {name: value}}.

    Raises:
        InputError: a file cannot be read or is not a grid, or the cells of a row differ in data, steps or sizes. In
            files older than `shared_fields`, only steps are compared.
    """
    cells: Table = {}
    yardsticks: Table = {}
    for path in paths:
        grid = read_grid(path)
        for row, columns in grid['cells'].items():
            known = cells.setdefault(row, {})
            known |= {
                name: cell for name, cell in columns.items() if 'error' not in cell or is_failed_cell(known.get(name))
            }
            yardsticks.setdefault(row, {})
            steps = {column: cell['steps'] for column, cell in cells[row].items() if 'error' not in cell}
            if len(set(steps.values())) > 1:
                raise InputError(f'{path}: the cells of {row} have different steps and cannot be compared: {steps}')
            check_rows_comparable(path, row, cells[row])
        for row, found in grid['yardsticks'].items():  # a row without cells may have baselines too
            yardsticks.setdefault(row, {}).update(found)
    return cells, yardsticks


def is_failed_cell(cell: Mapping[str, Any] | None) -> bool:
    """Returns whether a cell of a grid is missing or has failed, so that another failed cell may replace it."""
    return cell is None or 'error' in cell


def check_rows_comparable(path: Path, row: str, columns: dict[str, Any]) -> None:
    """Raises InputError if the runs of one table row differ in data, steps or sizes and so cannot be compared."""
    known = {column: cell['shared_fields'] for column, cell in columns.items() if 'shared_fields' in cell}
    for name in sorted({name for fields in known.values() for name in fields}):
        group = name.partition('.')[0]
        values = {
            column: fields.get(name, 'the default')
            for column, fields in known.items()
            if group not in YOUNGER or any(other.startswith(f'{ROWS}.') for other in fields)
        }
        first = next(iter(values), '')
        for column in (column for column, value in values.items() if value != values[first]):
            raise InputError(
                f'{path}: {row} has cells that cannot be compared: {describe_field(name)} is '
                f'{values[first]!r} of {first} and {values[column]!r} of {column}'
            )


def read_grid(path: Path) -> dict[str, Table]:
    """Reads a `grid.json` file; raises InputError if it cannot be read or has another form."""
    fault = f'{path}: not a grid.json of scripts/train_grid.py'
    try:
        grid = read_json_file(path)
    except OSError as error:
        raise InputError(f'{path}: cannot be read ({error.strerror})') from None
    except ValueError as error:
        raise InputError(f'{fault}: not JSON ({error})') from None
    try:
        columns = [cell for columns in grid['cells'].values() for cell in columns.values()]
        for cell in [cell for cell in columns if 'error' not in cell]:
            _ = (
                cell['steps'],
                cell.get('shared_fields', {}).keys(),
                [one['test'][cell['metric']] for one in cell['seeds'].values()],
            )
        grid_table(grid['cells'], grid['yardsticks'])  # `grid_table` raises an error if any other field is wrong
        if not columns:
            raise ValueError('it has no cells')
    except KeyError as error:
        raise InputError(f'{fault}: {error} is missing') from None
    except (ArithmeticError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f'{fault}: the cells have the wrong form ({one_line(error)})') from None
    return dict(grid)


if __name__ == '__main__':
    run_command(main)
