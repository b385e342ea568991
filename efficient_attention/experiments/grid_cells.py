"""Builds the config of each grid cell from a config file, and computes simple baselines for each row of the grid."""

import importlib.util
import inspect
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from efficient_attention.atomic_files import write_atomically
from efficient_attention.config.dict_conversion import flatten, from_dict
from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.arena.dataset_interface import ArenaRow
from efficient_attention.data.arena.row_cache import cached_rows, labelled_dataset_hash
from efficient_attention.data.arena.shallow_baselines import baseline_accuracies, baseline_names
from efficient_attention.data.examples.labelled_text import ARENA, arena_dataset
from efficient_attention.errors import InputError
from efficient_attention.experiments.grid_configs import read_cell_json
from efficient_attention.workdir.folder_kind import YARDSTICKS

# Baselines learn from at most this many words. Only retrieval and Path-X have more; 12,208 rows of Path-X are used.
MOST_WORDS = 200_000_000
Cells = dict[tuple[str, str], dict[str, Any]]
# These config fields choose the data of a grid row. The same value in two rows would train the same data twice.
# A table of results describes a row's data once, and shows a column's mechanism only by the column's name.
OF_ROW = ('examples.train', 'examples.dev', 'examples.test', 'data.source')
OF_COLUMN = 'model.attention'


def make_cells(
    file: str, overrides: Mapping[str, Any], rows: Sequence[str], columns: Sequence[str], size: str = ''
) -> Cells:
    """Returns the config values of each grid cell, as {(row, column): values}. The config file's function gets the text
    '<row>,<column>[,<size>]' and returns the values; overrides replace some of them.

    In the text of an override, such as a workdir to start from, the cell's names replace `{row}` and `{column}`.

    Raises:
        InputError: the file cannot be read or refuses a cell, a name occurs twice, or a field is unknown; or an
            override gives several rows the same examples or changes a column's attention.
    """
    for flag, names in (('rows', rows), ('columns', columns)):
        if not names or len(set(names)) < len(names):
            raise InputError(f'--{flag} is {",".join(names)!r}; it must be different names with commas')
    module = _load_config_module(file)
    if not inspect.signature(module.get_config).parameters:
        raise InputError(
            f'--config {file}: its get_config takes no argument; it must take the names of a row and a column'
        )
    cells: Cells = {}
    own: dict[tuple[str, str], Any] = {}
    for row in rows:
        for column in columns:
            try:
                config = module.get_config(','.join([row, column, *([size] if size else [])]))
                own[row, column] = config.to_dict()
                config.update_from_flattened_dict(substitute_cell_names(overrides, row, column))
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f'{row},{column}: {error}') from None
            cells[row, column] = config.to_dict()
    for name in overrides:
        _check_overrides_keep_names(name, own, cells)
    return cells


def _check_overrides_keep_names(name: str, own: Mapping[tuple[str, str], Any], cells: Cells) -> None:
    """Raises InputError if an override gives several grid rows the same data, or changes the attention mechanism of a
    column.
    """
    group, _, field = name.partition('.')
    seen: dict[Any, tuple[str, str]] = {}
    for cell, values in cells.items():
        row, column = cell
        if name == OF_COLUMN and values[group][field] != own[cell][group][field]:
            raise InputError(
                f'--config.{name} is {values[group][field]!r}, which the column {column} is not; give it a column of '
                'its own in the config file, or train it with train.py'
            )
        if name in OF_ROW:
            other = seen.setdefault((values[group][field], column), cell)
            if own[cell][group][field] != own[other][group][field]:
                raise InputError(
                    f'--config.{name} is {values[group][field]!r} in the rows {other[0]} and {row}, which would train '
                    'the same under two names; give it to one row at a time, or put {row} in it'
                )


def substitute_cell_names(overrides: Mapping[str, Any], row: str, column: str) -> dict[str, Any]:
    """Returns the overrides of one grid cell, with the placeholders `{row}` and `{column}` replaced by the cell's
    names.
    """
    return {
        name: value.replace('{row}', row).replace('{column}', column) if isinstance(value, str) else value
        for name, value in overrides.items()
    }


def effective_overrides(overrides: Mapping[str, Any], own: Cells, cells: Cells) -> dict[str, Any]:
    """Returns the command-line overrides that change at least one cell's value from the config file."""
    before, after = ({cell: flatten(values) for cell, values in of.items()} for of in (own, cells))
    return {
        name: value
        for name, value in overrides.items()
        if any(before[cell].get(name) != after[cell].get(name) for cell in cells)
    }


def has_column_specific_sizes(file: str, size: str) -> bool:
    """Returns whether the config file lists this size in `OWN_SIZES`, so that cells of one row may differ in model
    size.
    """
    return size in getattr(_load_config_module(file), 'OWN_SIZES', ())


def _load_config_module(file: str) -> Any:
    file, _, argument = file.partition(':')
    if argument:
        raise InputError(f'--config has {argument!r} after the file; cells are named by --rows, --columns and --size')
    specification = importlib.util.spec_from_file_location('grid_config', file)
    if specification is None or specification.loader is None:
        raise InputError(f'--config {file}: not a Python file')
    module = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(module)
    except OSError as error:
        raise InputError(f'--config {file}: cannot be read ({error.strerror})') from None
    return module


def parse_learning_rates(words: Sequence[str]) -> tuple[float, ...]:
    """Parses learning rates from texts. Raises InputError if a rate is not positive, or two rates have the same short
    text form.
    """
    try:
        rates = tuple(map(float, words))
    except ValueError:
        rates = (math.nan,)
    if not all(0 < rate < math.inf for rate in rates) or len({f'{rate:g}' for rate in rates}) < len(rates):
        raise InputError(f'--rates is {",".join(words)!r}; it must be different numbers above 0 with commas')
    return rates


def compute_baselines(cells: Mapping[tuple[str, str], Mapping[str, Any]], workdir: Path) -> dict[str, dict[str, float]]:
    """Computes the baselines of each grid row of long-range tasks, as {row: {name: accuracy}}, and caches them in the
    grid's folder.

    Like a model, baselines read the first `data.length` words of each text. They learn from the first training rows.

    Raises:
        InputError: rows cannot be read.
    """
    path = workdir / YARDSTICKS
    found: dict[str, dict[str, float]] = {}
    for (row, _), values in cells.items():
        if row in found or values['examples']['format'] != ARENA:
            continue
        fields = {name: value for name, value in values['examples'].items() if value is not None}
        examples = from_dict(fields, ExamplesConfig, 'examples.')
        length = int(values['data']['length'])
        identity = '-'.join(
            labelled_dataset_hash(arena_dataset(examples, split), split)[:16] for split in ('train', 'test')
        )
        identity = '-'.join([identity, str(length), *baseline_names(arena_dataset(examples, 'train').kind)])
        known = _read_object_if_exists(path)
        if identity not in known:
            train, test = (_truncated_rows(examples, split, length) for split in ('train', 'test'))
            scores = baseline_accuracies(arena_dataset(examples, 'train'), train, test)
            # The file of baselines is read again, because another command may have added baselines meanwhile.
            known = _read_object_if_exists(path) | {identity: scores}
            write_atomically(path, json.dumps(known, indent=2) + '\n')
        found[row] = known[identity]
    return found


def _truncated_rows(examples: ExamplesConfig, split: str, length: int) -> list[ArenaRow]:
    """Returns the rows of a data split, with texts cut to `length` words. For 'train', it stops after `MOST_WORDS`
    words.
    """
    rows, words = [], 0
    for prepared in cached_rows(arena_dataset(examples, split), split, Path(examples.cache)):
        row = prepared.to_arena_row(length)
        rows.append(row)
        words += sum(map(len, row.texts))
        if split == 'train' and words > MOST_WORDS:
            break
    return rows


def _read_object_if_exists(path: Path) -> dict[str, dict[str, float]]:
    return read_cell_json(path) if path.is_file() else {}
