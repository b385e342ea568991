"""Detects the kind of a --workdir folder from its files.

The kinds are a single run, several seeds, a grid of runs, a cell of a grid, and a sweep.
Each command continues only in folders of its own kind. In another kind of folder, it would create runs that no table of
results lists, or files that mislead the detection.
"""

import fnmatch
from pathlib import Path

from efficient_attention.errors import InputError
from efficient_attention.workdir.config_file import CONFIG, check_config_not_foreign, check_is_folder
from efficient_attention.workdir.last_saved_step import FILE_NAME as LAST_SAVED
from efficient_attention.workdir.metrics import FILE_NAME as METRICS
from efficient_attention.workdir.run_status import FILE_NAME as STATUS
from efficient_attention.workdir.samples_log import FILE_NAME as SAMPLES

VALUES = 'values.json'  # name of a file in the folder of a grid cell, written before the cell is trained
GRID_SUMMARY = 'grid.json'
SEEDS_SUMMARY = 'seeds.json'
SWEEP_PLAN = 'sweep.json'  # name of a file in a sweep's folder, written before any trial is trained
# name of a file with baselines in a grid's folder; it may exist before any cell is trained
YARDSTICKS = 'yardsticks.json'
RUN, SEEDS, CELL, GRID, SWEEP = 'a single run', 'several seeds', "a grid's cell", 'a grid', 'a sweep'
DEPTH = 3  # number of folder levels from a grid down to its runs: <row>/<column>/seed_<n>
# This maps each kind of folder to name patterns; such a folder has a file that matches at least one pattern.
# The first matching kind is used. RUN is last, so that a grid with a misplaced run in its folder is still a grid.
# Summary files are not sufficient to detect a kind, because they are written after all runs.
SIGNS = {
    CELL: (VALUES,),
    "a grid's row": (f'*/{VALUES}',),
    GRID: (GRID_SUMMARY, f'*/*/{VALUES}'),
    SWEEP: (SWEEP_PLAN,),
    SEEDS: (SEEDS_SUMMARY, f'seed_*/{CONFIG}'),
    RUN: (CONFIG,),
}
# A folder without a trained run may contain these files.
# RUN_NAMES are left by a run that ended before it wrote its config.json.
# ANY_NAMES exist before any run: shell logs, hidden files, and the folder 'lost+found' of a new disk.
RUN_NAMES = (
    *('lock', 'checkpoints', 'environment.json', METRICS, SAMPLES, STATUS, LAST_SAVED, 'report.html', 'stalled-*'),
    *('profile', 'tensorboard', 'csv', 'trackers', 'trackio', 'wandb', 'mlflow'),
)
# These files are a run's own only beside its checkpoints; elsewhere they may be a Hugging Face folder's.
VOCABULARY_NAMES = ('tokenizer.json', 'target_tokenizer.json', 'characters.json', 'words.json')
ANY_NAMES = ('.*', 'lost+found', 'log*', '*.log', '*.out', '*.err', 'stdout*', 'stderr*')
SEVERAL = {VALUES: CELL, GRID_SUMMARY: GRID, SEEDS_SUMMARY: SEEDS, SWEEP_PLAN: SWEEP}


def check_folder_kind(workdir: Path, wanted: str) -> None:
    """Raises InputError if a folder is of another kind than `wanted`: RUN, SEEDS, GRID or SWEEP.

    Also raises if the path is a file, or if the folder contains files that no command of this project has written. A
    config.json that belongs to no run is an error too.
    """
    check_is_folder(workdir)
    kind, sign = detect_folder_kind(workdir)
    if kind not in ('', wanted):
        raise InputError(f'{workdir} is the folder of {kind} ({sign} is in it); name a new --workdir')
    if kind == RUN:
        check_config_not_foreign(workdir)
    if not kind and (foreign := foreign_files(workdir, wanted)):
        raise InputError(
            f'{workdir} is no workdir: {foreign[0]} is in it, and training writes into its folder; name a new --workdir'
        )


def foreign_files(folder: Path, wanted: str) -> list[str]:
    """Returns the names of a folder's unknown files, which no run writes. Subfolders count only if `wanted` is RUN."""
    if not folder.is_dir():
        return []
    paths = [path for path in sorted(folder.iterdir()) if wanted == RUN or not path.is_dir()]
    known = (*RUN_NAMES, *ANY_NAMES, *([YARDSTICKS] if wanted == GRID else []))
    if (folder / 'checkpoints').is_dir():
        known += VOCABULARY_NAMES
    return [path.name for path in paths if not any(fnmatch.fnmatchcase(path.name, name) for name in known)]


def check_folder_kind_and_parents(workdir: Path, wanted: str) -> None:
    """Raises InputError if a folder is of another kind than wanted, or a new folder inside a folder of several runs.

    Use it for a path that a user names: a folder of several runs treats everything inside as its own. The surrounding
    folders are recognised only by their files, because any of them may contain a grid somewhere.
    """
    check_folder_kind(workdir, wanted)
    for folder in workdir.absolute().parents[:DEPTH] if detect_folder_kind(workdir)[0] != wanted else ():
        for name, kind in SEVERAL.items():
            if (folder / name).is_file():
                raise InputError(f'{workdir} lies in the folder of {kind} ({folder / name}); name another --workdir')


def detect_folder_kind(folder: Path) -> tuple[str, str]:
    """Returns the kind of a folder and the first file that shows this kind; ('', '') if the folder has no known kind.

    Raises:
        InputError: the folder cannot be read.
    """
    try:
        for kind, patterns in SIGNS.items():
            for path in (path for pattern in patterns for path in folder.glob(pattern)):
                return kind, str(path.relative_to(folder))
    except OSError as error:  # This error occurs, for example, if a file name is too long.
        raise InputError(f'{folder}: cannot be read ({error.strerror})') from None
    return '', ''
