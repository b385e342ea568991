"""The cells of a grid out of a config file, and the yardsticks of its rows."""

import importlib.util
import inspect
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.config.nested_dicts import flatten, from_dict
from efficient_attention.data.arena.arena_row import ArenaRow
from efficient_attention.data.arena.prepared import labelled_identity, prepared_rows
from efficient_attention.data.arena.yardsticks import names_of, yardsticks
from efficient_attention.data.examples.labelled_text import ARENA, arena_set
from efficient_attention.errors import InputError
from efficient_attention.experiments.grid_configs import read_object
from efficient_attention.whole_files import write_atomically
from efficient_attention.workdir.folder_kind import YARDSTICKS

MOST_WORDS = 200_000_000  # that yardsticks learn from: all of a task but Path-X (12,208 rows) and retrieval
Cells = dict[tuple[str, str], dict[str, Any]]
# What a row is the name of: one value of these for several rows would train the same under several names. Tables print
# the rows that a single one was trained on, and nothing of a mechanism but its column.
OF_ROW = ('examples.train', 'examples.dev', 'examples.test', 'data.source')
OF_COLUMN = 'model.attention'


def cells_of(
    file: str, overrides: Mapping[str, Any], rows: Sequence[str], columns: Sequence[str], size: str = ''
) -> Cells:
    """(row, column) -> the values of the config that the file gives for '<row>,<column>[,<size>]', with the overrides.

    In the text of an override `{row}` and `{column}` stand for the cell's, such as in the workdir to start from.

    Raises:
        InputError: the file cannot be read or refuses a cell, a name comes twice, a field is unknown, or an override
            gives several rows the same examples, or a column another attention, than the file does.
    """
    for flag, names in (('rows', rows), ('columns', columns)):
        if not names or len(set(names)) < len(names):
            raise InputError(f'--{flag} is {",".join(names)!r}; it must be different names with commas')
    module = _module_of(file)
    if not inspect.signature(module.get_config).parameters:
        raise InputError(f'--config {file}: its get_config takes no argument, which would name a row and a column')
    cells: Cells = {}
    own: dict[tuple[str, str], Any] = {}
    for row in rows:
        for column in columns:
            try:
                config = module.get_config(','.join([row, column, *([size] if size else [])]))
                own[row, column] = config.to_dict()
                config.update_from_flattened_dict(filled(overrides, row, column))
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f'{row},{column}: {error}') from None
            cells[row, column] = config.to_dict()
    for name in overrides:
        _check_names_stay_true(name, own, cells)
    return cells


def _check_names_stay_true(name: str, own: Mapping[tuple[str, str], Any], cells: Cells) -> None:
    """Raises InputError where an override makes different rows the same, or another mechanism of a column."""
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


def filled(overrides: Mapping[str, Any], row: str, column: str) -> dict[str, Any]:
    """The overrides of one cell."""
    return {
        name: value.replace('{row}', row).replace('{column}', column) if isinstance(value, str) else value
        for name, value in overrides.items()
    }


def changing(overrides: Mapping[str, Any], own: Cells, cells: Cells) -> dict[str, Any]:
    """The overrides that give a cell another value than it has of its own, by the config file."""
    before, after = ({cell: flatten(values) for cell, values in of.items()} for of in (own, cells))
    return {
        name: value
        for name, value in overrides.items()
        if any(before[cell].get(name) != after[cell].get(name) for cell in cells)
    }


def has_own_sizes(file: str, size: str) -> bool:
    """Whether the file's `OWN_SIZES` says that cells of this size have sizes of their own in each column."""
    return size in getattr(_module_of(file), 'OWN_SIZES', ())


def _module_of(file: str) -> Any:
    file, _, argument = file.partition(':')
    if argument:
        raise InputError(f'--config has {argument!r} behind the file; cells are named by --rows, --columns and --size')
    specification = importlib.util.spec_from_file_location('grid_config', file)
    if specification is None or specification.loader is None:
        raise InputError(f'--config {file}: not a Python file')
    module = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(module)
    except OSError as error:
        raise InputError(f'--config {file}: cannot be read ({error.strerror})') from None
    return module


def positive_rates(words: Sequence[str]) -> tuple[float, ...]:
    """Learning rates out of words; raises InputError where one is no positive number or two have one name."""
    try:
        rates = tuple(map(float, words))
    except ValueError:
        rates = (math.nan,)
    if not all(0 < rate < math.inf for rate in rates) or len({f'{rate:g}' for rate in rates}) < len(rates):
        raise InputError(f'--rates is {",".join(words)!r}; it must be different numbers above 0 with commas')
    return rates


def yardsticks_of(cells: Mapping[tuple[str, str], Mapping[str, Any]], workdir: Path) -> dict[str, dict[str, float]]:
    """The yardsticks of each row of long-range rows, {row: {name: accuracy}}, kept in the grid's folder.

    They read what a model reads: of each text the first `data.length` words. What is learnt, is from the first rows.

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
        identity = '-'.join(labelled_identity(arena_set(examples, split), split)[:16] for split in ('train', 'test'))
        identity = '-'.join([identity, str(length), *names_of(arena_set(examples, 'train').kind)])
        known = _known(path)
        if identity not in known:
            train, test = (_cut_rows(examples, split, length) for split in ('train', 'test'))
            scores = yardsticks(arena_set(examples, 'train'), train, test)
            known = _known(path) | {identity: scores}  # another command may have added some meanwhile
            write_atomically(path, json.dumps(known, indent=2) + '\n')
        found[row] = known[identity]
    return found


def _cut_rows(examples: ExamplesConfig, split: str, length: int) -> list[ArenaRow]:
    """The rows of a split, their texts cut, so many of 'train' that they fit into memory."""
    rows, words = [], 0
    for prepared in prepared_rows(arena_set(examples, split), split, Path(examples.cache)):
        row = prepared.in_words(length)
        rows.append(row)
        words += sum(map(len, row.texts))
        if split == 'train' and words > MOST_WORDS:
            break
    return rows


def _known(path: Path) -> dict[str, dict[str, float]]:
    return read_object(path) if path.is_file() else {}
