"""Records each grid cell's config in its folder, and checks it against the other cells of the row and against earlier
commands.

Datasets are compared by a digest of their content, so that paths do not matter.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from efficient_attention.atomic_files import write_atomically
from efficient_attention.config.dict_conversion import flatten, from_dict, to_dict
from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.config.run import RunConfig
from efficient_attention.data.arena.dataset_interface import SPLITS
from efficient_attention.data.examples.labelled_text import ARENA, arena_dataset
from efficient_attention.data.preparation.cache_folder import json_sha256
from efficient_attention.errors import InputError, one_line
from efficient_attention.tasks.fine_tuning import content_digests
from efficient_attention.workdir.folder_kind import GRID, VALUES, check_folder_kind

Values = Mapping[str, Any]
Cells = Mapping[tuple[str, str], Values]
# Files in a cell's folder: the learning rate that the trial runs chose, and the result of the cell.
CHOICE, CELL = 'choice.json', 'cell.json'
CHOSEN = ('learning_rate', 'pilots', 'pilot_steps')
# key of the trial runs' time in the file choice.json; files from older versions lack this key
PILOT_SECONDS = 'pilot_seconds'
# Keys of a cell's saved config besides the config groups: the name of the model size, and {split: digest of its rows}.
# OVERRIDES holds the fields that the command line changed. Older folders lack ROWS and OVERRIDES.
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
# These config fields change the cost of a training step, but not its result.
STEP = ('train.micro_batches', 'model.remat', 'model.scan_unroll')
RATE = 'optimizer.learning_rate'  # each grid cell may have another learning rate
# These config fields change no result, and neither time nor memory of a step, so a later command may change them.
# Fields that change only time or memory must be equal in all cells, because the table of results compares both.
FREE = (
    *('data.cache', 'data.processes', 'data.workers', 'data.prefetch', 'examples.cache', 'distill.cache'),
    *('train.log_every_steps', 'train.stall_seconds'),
)

# Overridden fields in which cells of one row may differ: machine settings, and values that the table shows per cell.
UNCOMPARED = (RATE, *STEP, *FREE, 'train.max_skipped_in_row', 'model.attention_backend', 'model.recurrent_chunk')
START = 'train.start_from'  # This field is a path, so grid cells are only compared by whether it is set.
PLACE = re.compile(r':(folder|source)=.*')  # matches the part of a dataset's name that says where its rows are stored
DIGITS = 16  # digests are cut to this many hexadecimal digits, as in the names of dataset folders


def add_cell_metadata(
    cells: Cells, size: str, overrides: Mapping[str, Any] | None = None
) -> dict[tuple[str, str], dict[str, Any]]:
    """Returns the config values of all cells as JSON stores them, with three more keys: the name of the model size,
    digests of the data, and the overrides.
    """
    identities, found = SplitHashCache(), {}
    for cell, values in cells.items():
        beside = {SIZE: size, ROWS: identities.split_hashes(values['examples']), OVERRIDES: overrides or {}}
        found[cell] = json.loads(json.dumps({**values, **beside}))
    return found


def write_cell_configs(workdir: Path, cells: Cells) -> None:
    """Writes the config values of each cell into the cell's folder, unless the cell has already been started."""
    for (row, column), values in cells.items() if jax.process_index() == 0 else ():
        folder = workdir / row / column
        if not has_result_or_run(folder):
            write_atomically(folder / VALUES, json.dumps(values) + '\n')


def has_result_or_run(folder: Path) -> bool:
    """Returns whether a cell has been started: whether its folder holds a result, a seed's run or a trial run."""
    return (folder / VALUES).is_file() and ((folder / CELL).is_file() or any(folder.glob('*/config.json')))


def read_started_cell_configs(workdir: Path, rows: set[str]) -> dict[tuple[str, str], Values]:
    """Returns the saved config values of all started cells in these rows of the grid, by (row, column).

    Cells that earlier commands started in the same folder are included.
    """
    paths = [path for row in sorted(rows) for path in sorted((workdir / row).glob(f'*/{VALUES}'))]
    begun = [path for path in paths if has_result_or_run(path.parent)]
    return {(path.parent.parent.name, path.parent.name): read_cell_json(path) for path in begun}


def read_cell_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file of a cell's folder; raises InputError if the file holds no JSON object."""
    try:
        return dict(read_json_file(path))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f'{path}: not a JSON object that can be read ({one_line(error)})') from None


def check_cells_unchanged(workdir: Path, cells: Cells) -> None:
    """Raises InputError if the workdir is not a grid's folder, or a started cell in it has another config than now."""
    check_folder_kind(workdir, GRID)
    for (row, column), values in cells.items():
        folder = workdir / row / column
        for name, (before, now) in (
            config_differences(read_cell_json(folder / VALUES), values) if has_result_or_run(folder) else ()
        ):
            if name.startswith(f'{ROWS}.'):
                fault = f'{folder} was made before {describe_field(name)} changed'
                raise InputError(f'{fault}; name a new --workdir, or put back what was read')
            raise InputError(
                f'{folder} was made with {name} = {before!r}, now it is {now!r}; name a new --workdir, or give '
                'the old value'
            )


def read_sweep_choice(folder: Path) -> dict[str, Any]:
    """Returns the learning rate that a cell's trial runs chose, with their results and times; {} if the trial runs are
    not complete.
    """
    path = next((folder / name for name in (CELL, CHOICE) if (folder / name).is_file()), None)
    known = {} if path is None else read_cell_json(path)
    if not known.get('pilots'):
        return {}
    try:
        _ = list(map(float, known['pilots'])), float(known['learning_rate'])
        return {name: known[name] for name in CHOSEN} | {name: known[name] for name in {PILOT_SECONDS} & known.keys()}
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f'{path}: the choice of the trial runs cannot be read ({one_line(error)})') from None


def check_sweep_unchanged(workdir: Path, cells: Cells, rates: Sequence[float], steps: int) -> None:
    """Raises InputError if a cell's earlier trial runs had other learning rates or another number of steps than now
    requested.

    Without `rates` no rate is chosen, and an earlier choice stays. With `steps` 0, trial runs are as long as the cell's
    runs.
    """
    for (row, column), values in cells.items() if rates else ():
        folder, whole = workdir / row / column, flatten_with_defaults(values)['train.steps']
        asked = steps or whole
        wanted = f'{", ".join(f"{rate:g}" for rate in sorted(rates))} in {asked} steps'
        choice = read_sweep_choice(folder)
        made = {read_cell_json(path).get('train', {}).get('steps', 0) for path in folder.glob('pilot_*/config.json')}
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
    """Raises InputError if cells of one grid row differ in data, training length or model size; the message names the
    field.

    Model sizes may differ if `has_own_sizes` is True.
    """
    # `first` maps the key (row, False) to the first cell of a grid row: all cells of the row are compared with it.
    # The key (row, True) maps to the row's first cell that records its overrides: such cells are compared with it, too.
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
    """Returns a config field's name for error messages; a data digest is named 'the content of examples.<split>'."""
    group, _, split = field.partition('.')
    return f'the content of examples.{split}' if group == ROWS else field


def different_overrides(first: Values, second: Values) -> list[str]:
    """Returns the config fields that differ between two cells because their commands gave different overrides.

    Differences that only the config file makes between two columns are allowed.
    """
    if OVERRIDES not in first or OVERRIDES not in second:
        return []
    before, now = overrides_to_compare(first[OVERRIDES]), overrides_to_compare(second[OVERRIDES])
    differing = {name for name, _ in config_differences(first, second)}
    return sorted(name for name in differing & {*before, *now} if before.get(name) != now.get(name))


def overrides_to_compare(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the overrides that must be equal in all cells of a row: all except machine settings and paths."""
    found = {name: value for name, value in overrides.items() if name not in UNCOMPARED}
    return {name: bool(value) if name == START else value for name, value in found.items() if name[:5] != 'mesh.'}


def is_shared_in_row(field: str, *, has_own_sizes: bool) -> bool:
    """Returns whether a config field must have the same value in all cells of a grid row."""
    names = EQUAL if has_own_sizes else EQUAL + OF_SIZE
    return field != RATE and any(f'{field}.'.startswith(f'{name}.') for name in names)


def shared_fields(values: Values, *, has_own_sizes: bool = False) -> dict[str, Any]:
    """Returns {dotted name: value} of the config fields that all cells of a grid row share.

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
    """Returns {dotted name: value} of the config fields that change only the time and memory of a training step."""
    given = flatten_with_defaults(values)
    return {name: given[name] for name in STEP}


def check_has_test_split(cells: Cells) -> None:
    """Raises InputError if a cell has no test set, chooses its checkpoint by the test set, or stops early."""
    for (row, column), values in cells.items():
        if steps := values['train'].get('early_stop'):
            raise InputError(
                f'{row},{column}: train.early_stop is {steps}; all cells train as many steps, so it must be 0'
            )
        if values['eval']['split'] != 'held_out' or not values['examples']['test']:
            fault = 'examples.test is empty' if not values['examples']['test'] else "eval.split is 'test'"
            raise InputError(f'{row},{column}: {fault}; a cell is chosen by examples.dev and tested on examples.test')


def config_differences(first: Values, second: Values) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yields (dotted name, (first value, second value)) for each field in which two cells' configs differ.

    A missing field counts as its default, so that folders from before the field existed stay comparable. Row digests
    are compared only if both are known.
    """
    before, now = flatten_with_defaults(first), flatten_with_defaults(second)
    for name in sorted(before.keys() | now.keys()):
        pair = before.get(name), now.get(name)
        is_known = not (name.startswith(f'{ROWS}.') and None in pair) and name.partition('.')[0] != OVERRIDES
        if pair[0] != pair[1] and name not in (*FREE, ROWS) and is_known:
            yield name, pair


def flatten_with_defaults(values: Values) -> dict[str, Any]:
    """Returns {dotted name: value} of a config, where missing fields and fields that are None get their defaults.

    If the run starts from a checkpoint, fields that are None stay None, because the checkpoint gives their values.
    """
    given = flatten(values)
    is_started = bool(given.get('train.start_from'))
    defaults = flatten(to_dict(RunConfig()) | {SIZE: ''})
    kept = {name: value for name, value in given.items() if value is not None or is_started or name not in defaults}
    return defaults | kept


class SplitHashCache:
    """Computes a digest of each cell's data only once per dataset, because hashing tens of thousands of files takes
    seconds.
    """

    def __init__(self) -> None:
        self.known: dict[str, dict[str, str]] = {}

    def split_hashes(self, examples: Mapping[str, Any]) -> dict[str, str]:
        """Returns {split: digest of its rows} of a cell's data. Returns {} if the data cannot be read; training then
        reports the error.
        """
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
    """Returns a digest of the rows in a data split; the digest does not depend on the machine or the folder.

    Raises:
        InputError: the rows are missing.
    """
    if config.format != ARENA:
        return json_sha256(content_digests(config, split))[:DIGITS]
    rows = arena_dataset(config, split)
    identity = {'set': PLACE.sub('', rows.text), 'rules': rows.rules, 'split': split}
    return json_sha256(identity | {'digest': rows.digest(split), 'classes': rows.class_file_counts(split)})[:DIGITS]
