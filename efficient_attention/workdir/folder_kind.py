"""What a --workdir is the folder of: one run, several seeds, a grid of runs or a cell of one; told from what is in it.

Each command goes on in folders of its own kind alone: in another's it would leave runs that no table names, or files
by which that one's commands know a folder.
"""

import fnmatch
from pathlib import Path

from efficient_attention.errors import InputError
from efficient_attention.workdir.config_file import CONFIG, check_is_folder, check_own_config
from efficient_attention.workdir.metrics import FILE_NAME as METRICS
from efficient_attention.workdir.saved_before import FILE_NAME as LAST_SAVED

VALUES = 'values.json'  # of a grid's cell, before it is trained
GRID_SUMMARY = 'grid.json'
SEEDS_SUMMARY = 'seeds.json'
YARDSTICKS = 'yardsticks.json'  # of a grid, perhaps before any cell is trained
RUN, SEEDS, CELL, GRID = 'a single run', 'several seeds', "a grid's cell", 'a grid'
DEPTH = 3  # of a run in a grid's folder: <row>/<column>/seed_<n>
# What a folder is called -> the files of which it has one, the innermost folders first: a run that lies in the folder
# of a grid by mistake does not make it another. Summaries come at the end of all runs, so they are not enough.
SIGNS = {
    CELL: (VALUES,),
    "a grid's row": (f'*/{VALUES}',),
    GRID: (GRID_SUMMARY, f'*/*/{VALUES}'),
    SEEDS: (SEEDS_SUMMARY, f'seed_*/{CONFIG}'),
    RUN: (CONFIG,),
}
# Files that may be in a folder without a trained run: RUN_NAMES from a run that ended before its config.json, and
# ANY_NAMES from before any run: logs that a shell writes, hidden files, the folder of a new disk.
RUN_NAMES = ('lock', 'checkpoints', 'tensorboard', 'environment.json', METRICS, LAST_SAVED, 'report.html', 'stalled-*')
ANY_NAMES = ('.*', 'lost+found', 'log*', '*.log', '*.out', '*.err', 'stdout*', 'stderr*')
SEVERAL = {VALUES: CELL, GRID_SUMMARY: GRID, SEEDS_SUMMARY: SEEDS}


def check_kind(workdir: Path, wanted: str) -> None:
    """Raises InputError where a folder is one of another kind than `wanted`, which is RUN, SEEDS or GRID.

    Also where it is a file, has files in it that no command of this project has put there, or a config.json of
    something else than a run.
    """
    check_is_folder(workdir)
    kind, sign = kind_of(workdir)
    if kind not in ('', wanted):
        raise InputError(f'{workdir} is the folder of {kind} ({sign} is in it); name a new --workdir')
    if kind == RUN:
        check_own_config(workdir)
    if not kind and (foreign := foreign_names(workdir, wanted)):
        raise InputError(
            f'{workdir} is no workdir: {foreign[0]} is in it, and training writes into its folder; name a new --workdir'
        )


def foreign_names(folder: Path, wanted: str) -> list[str]:
    """The names in a folder that no run has put there; subfolders count only if `wanted` is RUN."""
    if not folder.is_dir():
        return []
    paths = [path for path in sorted(folder.iterdir()) if wanted == RUN or not path.is_dir()]
    known = (*RUN_NAMES, *ANY_NAMES, *([YARDSTICKS] if wanted == GRID else []))
    return [path.name for path in paths if not any(fnmatch.fnmatchcase(path.name, name) for name in known)]


def check_place(workdir: Path, wanted: str) -> None:
    """As `check_kind`, for what a user names: also refuses a new folder inside one of several runs, which takes what
    lies there for its own. Of the folders around it the files tell alone, as any may have a grid in it somewhere."""
    check_kind(workdir, wanted)
    for folder in workdir.absolute().parents[:DEPTH] if kind_of(workdir)[0] != wanted else ():
        for name, kind in SEVERAL.items():
            if (folder / name).is_file():
                raise InputError(f'{workdir} lies in the folder of {kind} ({folder / name}); name another --workdir')


def kind_of(folder: Path) -> tuple[str, str]:
    """What a folder is and the first file that says so; two empty texts where it is none of these.

    Raises:
        InputError: it cannot be read.
    """
    try:
        for kind, patterns in SIGNS.items():
            for path in (path for pattern in patterns for path in folder.glob(pattern)):
                return kind, str(path.relative_to(folder))
    except OSError as error:  # such as a name that is too long
        raise InputError(f'{folder}: cannot be read ({error.strerror})') from None
    return '', ''
