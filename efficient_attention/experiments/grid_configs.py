"""Records each grid cell's config in its folder, and compares it with its row and with earlier commands.

Datasets are compared by a digest of their content, so that paths do not matter.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from efficient_attention.atomic_files import write_atomically
from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.config.json_text import read_json_file
from efficient_attention.config.nested_dicts import flatten, from_dict, to_dict
from efficient_attention.config.run import RunConfig
from efficient_attention.data.arena.arena_row import SPLITS
from efficient_attention.data.examples.labelled_text import ARENA, arena_dataset
from efficient_attention.data.preparation.cache_folder import json_sha256
from efficient_attention.errors import InputError, one_line
from efficient_attention.tasks.fine_tuning import content_digests
from efficient_attention.workdir.folder_kind import GRID, VALUES, check_folder_kind

Values = Mapping[str, Any]
Cells = Mapping[tuple[str, str], Values]
# Files of a cell's folder, next to VALUES: the choice of the learning rate, and the result.
CHOICE, CELL = 'choice.json', 'cell.json'
CHOSEN = ('learning_rate', 'pilots', 'pilot_steps')
PILOT_SECONDS = 'pilot_seconds'  # further field of a choice; older cells lack it
# Keys of a cell's values besides the config groups: the name of its sizes; {split: digest of its rows}; the fields
# that the command changed in all cells, as given, with {row} and {column}. Older folders lack the last two.
SIZE, ROWS, OVERRIDES = 'size', 'rows', 'overrides'
EQUAL = (SIZE, ROWS, 'task', 'data', 'examples', 'train.steps', 'train.batch_size', 'train.seed', 'eval', 'checkpoint')
OF_SIZE = (
    'model.layers',
    'model.width',
    'model.heads',
    'model.head_width',
    'model.embedding_width',
    'model.feed_forward_width',
    'model.dropout_rate',
    'optimizer',
)
STEP = ('train.micro_batches', 'model.remat', 'model.scan_unroll')  # change a step's cost, not its result
RATE = 'optimizer.learning_rate'  # each cell may choose its own
# Fields that change neither a result nor a step's time or memory, so they may change between two commands on one
# folder. Fields that change only time or memory may not, because the table reports both.
FREE = (
    *('data.cache', 'data.processes', 'data.workers', 'data.prefetch', 'examples.cache', 'distill.cache'),
    *('train.log_every_steps', 'train.stall_seconds'),
)

# Overridden fields that cells of one row need not share: machine settings, and values that the table shows per cell.
UNCOMPARED = (RATE, *STEP, *FREE, 'train.max_skipped_in_row', 'model.attention_backend', 'model.recurrent_chunk')
START = 'train.start_from'  # a path; only compared as set or not set
PLACE = re.compile(r':(folder|source)=.*')  # the location of a dataset's rows
DIGITS = 16  # of a digest; dataset folders have as many in their names


def add_cell_metadata(
    cells: Cells, size: str, overrides: Mapping[str, Any] | None = None
) -> dict[tuple[str, str], dict[str, Any]]:
    """Returns the cells' values as JSON gives them back, with the name of their sizes, row digests and overrides."""
    identities, found = SplitHashCache(), {}
    for cell, values in cells.items():
        beside = {SIZE: size, ROWS: identities.split_hashes(values['examples']), OVERRIDES: overrides or {}}
        found[cell] = json.loads(json.dumps({**values, **beside}))
    return found


def write_cell_values(workdir: Path, cells: Cells) -> None:
    """Writes each cell's values into its folder, except into folders that have begun."""
    for (row, column), values in cells.items() if jax.process_index() == 0 else ():
        folder = workdir / row / column
        if not has_result_or_run(folder):
            write_atomically(folder / VALUES, json.dumps(values) + '\n')


def has_result_or_run(folder: Path) -> bool:
    """Returns whether a cell has a result, or a run of a seed or a trial run; a refused cell has only its values."""
    return (folder / VALUES).is_file() and ((folder / CELL).is_file() or any(folder.glob('*/config.json')))


def read_row_values(workdir: Path, rows: set[str]) -> dict[tuple[str, str], Values]:
    """Returns the saved configs of all started cells in these rows of the grid, by (row, column).

    They include cells that earlier commands started in the same folder.
    """
    paths = [path for row in sorted(rows) for path in sorted((workdir / row).glob(f'*/{VALUES}'))]
    begun = [path for path in paths if has_result_or_run(path.parent)]
    return {(path.parent.parent.name, path.parent.name): read_object(path) for path in begun}


def read_object(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file of a cell's folder; raises InputError if there is none."""
    try:
        return dict(read_json_file(path))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f'{path}: not a JSON object that can be read ({one_line(error)})') from None


def check_workdir(workdir: Path, cells: Cells) -> None:
    """Raises InputError if a cell's folder has another config, or the folder is not a grid's."""
    check_folder_kind(workdir, GRID)
    for (row, column), values in cells.items():
        folder = workdir / row / column
        for name, (before, now) in (
            config_differences(read_object(folder / VALUES), values) if has_result_or_run(folder) else ()
        ):
            if name.startswith(f'{ROWS}.'):
                fault = f'{folder} was made before {describe_field(name)} changed'
                raise InputError(f'{fault}; name a new --workdir, or put back what was read')
            raise InputError(
                f'{folder} was made with {name} = {before!r}, now it is {now!r}; name a new --workdir, or give '
                'the old value'
            )


def read_sweep_choice(folder: Path) -> dict[str, Any]:
    """Returns the learning rate that a cell's trial runs chose, with their losses and times; {} before all have run."""
    path = next((folder / name for name in (CELL, CHOICE) if (folder / name).is_file()), None)
    known = {} if path is None else read_object(path)
    if not known.get('pilots'):
        return {}
    try:
        _ = list(map(float, known['pilots'])), float(known['learning_rate'])
        return {name: known[name] for name in CHOSEN} | {name: known[name] for name in {PILOT_SECONDS} & known.keys()}
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f'{path}: the choice of the trial runs cannot be read ({one_line(error)})') from None


def check_sweep_unchanged(workdir: Path, cells: Cells, rates: Sequence[float], steps: int) -> None:
    """Raises InputError if a cell's earlier trial runs had another number of steps or other learning rates.

    Without rates nothing is chosen, and an earlier choice stays. With 0 steps, trial runs are as long as the cell.
    """
    for (row, column), values in cells.items() if rates else ():
        folder, whole = workdir / row / column, with_default_values(values)['train.steps']
        asked = steps or whole
        wanted = f'{", ".join(f"{rate:g}" for rate in sorted(rates))} in {asked} steps'
        choice = read_sweep_choice(folder)
        made = {read_object(path).get('train', {}).get('steps', 0) for path in folder.glob('pilot_*/config.json')}
        if choice:
            tried = ', '.join(f'{rate:g}' for rate in sorted(map(float, choice['pilots'])))
            before = f'{tried} in {choice["pilot_steps"]} steps'
        elif (folder / CELL).is_file():
            before = 'none'
        else:
            before = wanted if made <= {asked} else f'some in {", ".join(map(str, sorted(made)))} steps'
        if before != wanted:
            raise InputError(
                f'{folder}: the trial runs before were {before}, now --rates and --pilot_steps say {wanted}; name a '
                'new --workdir, or give the old values, or no --rates, which keeps the earlier choice'
            )


def check_row_cells_comparable(cells: Cells, *, has_own_sizes: bool = False) -> None:
    """Raises InputError if cells of a row differ in data, training length or sizes; the message names the field.

    Sizes may differ if `has_own_sizes`.
    """
    # By row and flag. Cells with noted overrides are compared with one another (True) and with all cells (False),
    # because older cells lack overrides.
    first: dict[tuple[str, bool], tuple[str, Values]] = {}
    for (row, column), values in cells.items():
        for is_young in {False, OVERRIDES in values}:
            other, before = first.setdefault((row, is_young), (column, values))
            differing = [name for name, _ in config_differences(before, values)]
            shared = [field for field in differing if is_shared_in_row(field, has_own_sizes=has_own_sizes)]
            for field in [*different_overrides(before, values), *shared]:
                raise InputError(
                    f'{row}: {describe_field(field)} differs between the columns {other} and '
                    f'{column}; all cells of a row have '
                    'the same rows, in the same order, and the same steps, sizes and --config fields'
                )


def describe_field(field: str) -> str:
    """Returns a field's name for messages; for the digest of a split's rows, 'the content of examples.<split>'."""
    group, _, split = field.partition('.')
    return f'the content of examples.{split}' if group == ROWS else field


def different_overrides(first: Values, second: Values) -> list[str]:
    """Returns the fields that differ between two cells and were overridden differently by their commands.

    Differences that only the config file makes between two columns are allowed.
    """
    if OVERRIDES not in first or OVERRIDES not in second:
        return []
    before, now = overrides_to_compare(first[OVERRIDES]), overrides_to_compare(second[OVERRIDES])
    differing = {name for name, _ in config_differences(first, second)}
    return sorted(name for name in differing & {*before, *now} if before.get(name) != now.get(name))


def overrides_to_compare(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the overrides that other commands' cells must share: all except fields of machines and paths."""
    found = {name: value for name, value in overrides.items() if name not in UNCOMPARED}
    return {name: bool(value) if name == START else value for name, value in found.items() if name[:5] != 'mesh.'}


def is_shared_in_row(field: str, *, has_own_sizes: bool) -> bool:
    """Returns whether all cells of a row must have the same value of a config field."""
    names = EQUAL if has_own_sizes else EQUAL + OF_SIZE
    return field != RATE and any(f'{field}.'.startswith(f'{name}.') for name in names)


def shared_fields(values: Values, *, has_own_sizes: bool = False) -> dict[str, Any]:
    """Returns {dotted name: value} of the fields that all cells of a row share.

    Defaults and the locations of data are left out; locations differ between machines.
    """
    found = {
        name: value
        for name, (_, value) in config_differences({}, values)
        if is_shared_in_row(name, has_own_sizes=has_own_sizes)
    }
    found |= {f'{ROWS}.{split}': identity for split, identity in values.get(ROWS, {}).items()}
    found |= {f'{OVERRIDES}.{name}': value for name, value in overrides_to_compare(values.get(OVERRIDES, {})).items()}
    return {name: PLACE.sub('', value) if isinstance(value, str) else value for name, value in found.items()}


def step_fields(values: Values) -> dict[str, Any]:
    """Returns {dotted name: value} of the fields that change only a step's time and memory."""
    given = with_default_values(values)
    return {name: given[name] for name in STEP}


def check_has_test_split(cells: Cells) -> None:
    """Raises InputError if a cell has no test rows, or would choose its checkpoint by the test rows."""
    for (row, column), values in cells.items():
        if steps := values['train'].get('early_stop'):
            raise InputError(
                f'{row},{column}: train.early_stop is {steps}; all cells train as many steps, so it must be 0'
            )
        if values['eval']['split'] != 'held_out' or not values['examples']['test']:
            fault = 'examples.test is empty' if not values['examples']['test'] else "eval.split is 'test'"
            raise InputError(f'{row},{column}: {fault}; a cell is chosen by examples.dev and tested on examples.test')


def config_differences(first: Values, second: Values) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yields (dotted name, both values) of each field in which two configs differ.

    A missing field counts as its default, so that folders from before the field existed stay comparable. Row digests
    are compared only if both are known.
    """
    before, now = with_default_values(first), with_default_values(second)
    for name in sorted(before.keys() | now.keys()):
        pair = before.get(name), now.get(name)
        is_known = not (name.startswith(f'{ROWS}.') and None in pair) and name.partition('.')[0] != OVERRIDES
        if pair[0] != pair[1] and name not in (*FREE, ROWS) and is_known:
            yield name, pair


def with_default_values(values: Values) -> dict[str, Any]:
    """Returns {dotted name: value}, with defaults for fields that are missing or None.

    If the run starts from a checkpoint, None stays: it stands for the checkpoint's value.
    """
    given = flatten(values)
    is_started = bool(given.get('train.start_from'))
    defaults = flatten(to_dict(RunConfig()) | {SIZE: ''})
    kept = {name: value for name, value in given.items() if value is not None or is_started or name not in defaults}
    return defaults | kept


class SplitHashCache:
    """Digests of cells' rows, each computed once, because hashing tens of thousands of files takes seconds."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, str]] = {}

    def split_hashes(self, examples: Mapping[str, Any]) -> dict[str, str]:
        """Returns {split: digest} of a cell's examples; {} if they cannot be read: training reports the error."""
        fields = {name: value for name, value in examples.items() if value is not None}
        key = json_sha256(fields)
        if key not in self.known:
            try:
                config = from_dict(fields, ExamplesConfig, 'examples.')
                self.known[key] = {split: split_hash(config, split) for split in SPLITS if fields.get(split)}
            except InputError:
                self.known[key] = {}
        return self.known[key]


def split_hash(config: ExamplesConfig, split: str) -> str:
    """Returns a digest that identifies a split's rows; it does not depend on the machine or the folder.

    Raises:
        InputError: the rows are missing.
    """
    if config.format != ARENA:
        return json_sha256(content_digests(config, split))[:DIGITS]
    rows = arena_dataset(config, split)
    identity = {'set': PLACE.sub('', rows.text), 'rules': rows.rules, 'split': split}
    return json_sha256(identity | {'digest': rows.digest(split), 'classes': rows.class_file_counts(split)})[:DIGITS]
