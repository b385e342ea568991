"""What a --workdir is the folder of: one run, several seeds, a grid of runs or a cell of one; told from what is in it.

Each command goes on in folders of its own kind alone: in another's it would leave runs that no table names, or files
by which that one's commands know a folder.
"""

from pathlib import Path

from efficient_attention.errors import InputError
from efficient_attention.workdir.config_file import CONFIG

VALUES = 'values.json'  # of a grid's cell, before it is trained
GRID_SUMMARY = 'grid.json'
SEEDS_SUMMARY = 'seeds.json'
RUN, SEEDS, GRID = 'a single run', 'several seeds', 'a grid'
# What a folder is called -> the files of which it has one, the innermost folders first: a run that lies in the folder
# of a grid by mistake does not make it another. Summaries come at the end of all runs, so they are not enough.
SIGNS = {
    "a grid's cell": (VALUES,),
    GRID: (GRID_SUMMARY, f'*/*/{VALUES}'),
    SEEDS: (SEEDS_SUMMARY, f'seed_*/{CONFIG}'),
    RUN: (CONFIG,),
}


def check_kind(workdir: Path, wanted: str) -> None:
    """Raises InputError where a folder is one of another kind than `wanted`, which is RUN, SEEDS or GRID."""
    for kind, patterns in SIGNS.items():
        found = next((path for pattern in patterns for path in workdir.glob(pattern)), None)
        if found is None:
            continue
        if kind != wanted:
            name = found.relative_to(workdir)
            raise InputError(f'{workdir} is the folder of {kind} ({name} is in it); name a new --workdir')
        return
