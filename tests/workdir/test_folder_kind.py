"""Tests that a command continues only a folder of its own kind, whatever else is in it and however far its runs are."""

from pathlib import Path

import pytest

from efficient_attention.errors import InputError
from efficient_attention.workdir.folder_kind import GRID, RUN, SEEDS, check_folder_kind, check_folder_kind_and_parents

FILES = {
    'config.json': RUN,
    'seeds.json': SEEDS,
    'seed_3/config.json': SEEDS,
    'grid.json': GRID,
    'text/full/values.json': GRID,
    'values.json': "a grid's cell",
    'full/values.json': "a grid's row",
}


@pytest.mark.parametrize('wanted', [RUN, SEEDS, GRID])
@pytest.mark.parametrize('name', FILES)
def test_a_folder_of_another_kind_is_refused(tmp_path: Path, name: str, wanted: str):
    check_folder_kind(tmp_path / 'missing', wanted)
    check_folder_kind(tmp_path, wanted)
    write(tmp_path / name)
    if FILES[name] == wanted:
        check_folder_kind(tmp_path, wanted)
        return
    line = rf'^{tmp_path} is the folder of {FILES[name]} \({name} is in it\); name a new --workdir$'
    with pytest.raises(InputError, match=line):
        check_folder_kind(tmp_path, wanted)


@pytest.mark.parametrize('wanted, name', [(GRID, 'text/full/values.json'), (SEEDS, 'seed_3/config.json')])
def test_a_run_that_lies_there_by_mistake_makes_it_no_other(tmp_path: Path, wanted: str, name: str):
    write(tmp_path / name)
    write(tmp_path / 'config.json')
    check_folder_kind(tmp_path, wanted)
    with pytest.raises(InputError, match=f'the folder of {wanted}'):
        check_folder_kind(tmp_path, RUN)


def test_a_cell_is_no_folder_of_seeds(tmp_path: Path):
    write(tmp_path / 'values.json')
    write(tmp_path / 'seed_0' / 'config.json')
    with pytest.raises(InputError, match="the folder of a grid's cell"):
        check_folder_kind(tmp_path, SEEDS)


@pytest.mark.parametrize('wanted', [RUN, SEEDS, GRID])
@pytest.mark.parametrize('has_ended', [False, True])
def test_a_new_folder_within_a_grid_is_refused(tmp_path: Path, wanted: str, has_ended: bool):
    write(tmp_path / 'arena' / 'text' / 'full' / 'values.json')
    if has_ended:
        write(tmp_path / 'arena' / 'grid.json')
    for name in ('text', 'text/full', 'text/full/seed_1') + (('other',) if has_ended else ()):
        with pytest.raises(InputError, match='the folder of a grid') as error:
            check_folder_kind_and_parents(tmp_path / 'arena' / name, wanted)
        assert str(error.value).startswith(f'{tmp_path}/arena/{name} ') and '; name a' in str(error.value)
    check_folder_kind_and_parents(tmp_path / 'beside', wanted)
    assert not (tmp_path / 'beside').exists()


def test_what_has_begun_within_a_grid_goes_on(tmp_path: Path):
    write(tmp_path / 'text' / 'full' / 'values.json')
    write(tmp_path / 'text' / 'full' / 'seed_0' / 'config.json')
    check_folder_kind_and_parents(tmp_path / 'text' / 'full' / 'seed_0', RUN)
    check_folder_kind_and_parents(tmp_path, GRID)
    line = (
        rf"^{tmp_path}/text/full/seed_1 lies in the folder of a grid's cell \({tmp_path}/text/full/values.json\); name"
    )
    with pytest.raises(InputError, match=line):
        check_folder_kind_and_parents(tmp_path / 'text' / 'full' / 'seed_1', RUN)


@pytest.mark.parametrize('wanted', [RUN, SEEDS, GRID])
def test_a_folder_of_something_else_is_refused_and_stays_as_it_is(tmp_path: Path, wanted: str):
    for name in ('.hidden', 'lost+found/x', 'log.txt', 'train.log', 'slurm-3.out', 'lock', 'checkpoints/damaged/x'):
        write(tmp_path / name)
    check_folder_kind(tmp_path, wanted)
    write(tmp_path / 'thesis.docx')
    line = f'^{tmp_path} is no workdir: thesis.docx is in it, and training writes into its folder; name a new --workdir'
    with pytest.raises(InputError, match=line):
        check_folder_kind(tmp_path, wanted)


def test_a_tokenizer_is_of_a_run_only_beside_checkpoints(tmp_path: Path):
    write(tmp_path / 'tokenizer.json')
    with pytest.raises(InputError, match='is no workdir: tokenizer.json is in it'):
        check_folder_kind(tmp_path, RUN)
    write(tmp_path / 'checkpoints' / '3' / 'x')
    check_folder_kind(tmp_path, RUN)


def test_a_folder_of_other_runs_is_no_workdir_of_a_run(tmp_path: Path):
    write(tmp_path / 'quickstart' / 'config.json')
    with pytest.raises(InputError, match='is no workdir: quickstart is in it'):
        check_folder_kind(tmp_path, RUN)


@pytest.mark.parametrize('name', ['text', 'text/run'])
def test_a_file_is_no_workdir(tmp_path: Path, name: str):
    write(tmp_path / 'text')
    with pytest.raises(InputError, match=f'^{tmp_path}/text is a file, and a workdir is a folder; name another'):
        check_folder_kind_and_parents(tmp_path / name, RUN)


def test_a_name_that_no_folder_can_have_is_one_line(tmp_path: Path):
    with pytest.raises(InputError, match=r'x: cannot be read \(File name too long\)$'):
        check_folder_kind_and_parents(tmp_path / ('x' * 300), RUN)


def write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"task": "pretraining"}')


@pytest.mark.parametrize('content', ['{"model_type": "bert"}', '{}', '[]', '{"task": '])
def test_a_config_of_something_else_is_not_overwritten(tmp_path: Path, content: str):
    (tmp_path / 'config.json').write_text(content)
    line = 'not JSON .*delete the file' if content == '{"task": ' else 'is no config of a run .*; name a new --workdir'
    with pytest.raises(InputError, match=f'^{tmp_path}/config.json:? {line}'):
        check_folder_kind(tmp_path, RUN)
