"""Each command goes on in folders of its own kind alone, whatever else lies in them and however far its runs are."""

from pathlib import Path

import pytest

from efficient_attention.errors import InputError
from efficient_attention.workdir.folder_kind import GRID, RUN, SEEDS, check_kind

FILES = {
    'config.json': RUN,
    'seeds.json': SEEDS,
    'seed_3/config.json': SEEDS,
    'grid.json': GRID,
    'text/full/values.json': GRID,
    'values.json': "a grid's cell",
}


@pytest.mark.parametrize('wanted', [RUN, SEEDS, GRID])
@pytest.mark.parametrize('name', FILES)
def test_a_folder_of_another_kind_is_refused(tmp_path: Path, name: str, wanted: str):
    check_kind(tmp_path / 'missing', wanted)
    check_kind(tmp_path, wanted)
    write(tmp_path / name)
    if FILES[name] == wanted:
        check_kind(tmp_path, wanted)
        return
    line = rf'^{tmp_path} is the folder of {FILES[name]} \({name} is in it\); name a new --workdir$'
    with pytest.raises(InputError, match=line):
        check_kind(tmp_path, wanted)


@pytest.mark.parametrize('wanted, name', [(GRID, 'text/full/values.json'), (SEEDS, 'seed_3/config.json')])
def test_a_run_that_lies_there_by_mistake_makes_it_no_other(tmp_path: Path, wanted: str, name: str):
    write(tmp_path / name)
    write(tmp_path / 'config.json')
    check_kind(tmp_path, wanted)
    with pytest.raises(InputError, match=f'the folder of {wanted}'):
        check_kind(tmp_path, RUN)


def test_a_cell_is_no_folder_of_seeds(tmp_path: Path):
    write(tmp_path / 'values.json')
    write(tmp_path / 'seed_0' / 'config.json')
    with pytest.raises(InputError, match="the folder of a grid's cell"):
        check_kind(tmp_path, SEEDS)


def write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{}')
