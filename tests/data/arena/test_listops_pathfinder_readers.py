"""Tests of the readers of the released ListOps and Pathfinder files, on tiny copies that the tests write."""

import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from efficient_attention.data.arena.benchmark_format_writer import write_original_format
from efficient_attention.data.arena.dataset_registry import open_arena_dataset
from efficient_attention.data.arena.listops_pathfinder_readers import (
    listops_file,
    listops_rows,
    pathfinder_image_paths,
    pathfinder_metadata_files,
)
from efficient_attention.errors import InputError

SPLITS = ('train', 'dev', 'test')
TREE = '( ( ( ( [MAX 2 ) 3 ) ( ( ( [SM 5 ) 6 ) ] ) ) ] )'
WORDS = [11, 2, 3, 13, 5, 6, 14, 14]  # ids of the words [MAX 2 3 [SM 5 6 ] ]


@pytest.mark.parametrize('source', [TREE, '[MAX 2 3 [SM 5 6 ] ]', '(((([MAX 2)3)((([SM 5)6)]))])'])
@pytest.mark.parametrize('end', ['\r\n', '\n'])  # The released files have the csv module's \r\n.
def test_sources_with_and_without_parentheses(tmp_path: Path, source: str, end: str):
    path = tmp_path / 'basic_val.tsv'
    path.write_bytes(f'Source\tTarget{end}{source}\t3{end}'.encode())
    [row] = listops_rows(listops_file(tmp_path, 'dev'))
    assert row.texts[0].tolist() == WORDS and row.texts[0].dtype == np.uint16 and row.label == 3


def test_tables_hold_what_was_generated(tmp_path: Path):
    sets = {split: open_arena_dataset('listops:rows=3:length=8-40', split) for split in SPLITS}
    write_original_format(sets, tmp_path)
    again = open_arena_dataset(f'listops:folder={tmp_path}', 'examples.train')
    assert (again.kind, again.vocabulary, again.labels) == ('listops', 'listops', sets['dev'].labels)
    for split in SPLITS:
        assert again.digest(split) != ''
        for row, made in zip(again.rows(split), sets[split].rows(split), strict=True):
            assert row.texts[0].tolist() == made.texts[0].tolist() and row.label == made.label


@pytest.mark.parametrize(
    'content, fault',
    [
        ('Source\tTarget\n[MAX 1 2 ]\t2\n[MAX 1 11 ]\t2\n', "line 3: '11' is no word of ListOps; known: 0 1 2"),
        ('Source\tTarget\n[MAX 1 2 ]\t12\n', "line 2: field 'Target' is '12'; it must be a digit from 0 to 9"),
        ('Source\tTarget\n[MAX 1 2 ]\t\n', "line 2: field 'Target' is ''; it must be a digit"),
        ('Text\tTarget\n[MAX 1 2 ]\t2\n', "line 1: no column 'Source'; known: 'Text', 'Target'"),
    ],
)
def test_tables_that_are_none(tmp_path: Path, content: str, fault: str):
    path = tmp_path / 'basic_test.tsv'
    path.write_text(content)
    with pytest.raises(InputError, match=f'basic_test.tsv: {fault}'.replace('[', r'\[')):
        list(listops_rows(path))


def test_tables_that_are_missing(tmp_path: Path):
    with pytest.raises(InputError, match=r'basic_train\.tsv: no such file; the folder must hold basic_train\.tsv, '):
        open_arena_dataset(f'listops:folder={tmp_path}', 'x').digest('train')


def write_pictures(folder: Path, count: int, side: int = 32, a_list: int = 4) -> list[int]:
    """Writes images of one grey value (the image's number), `a_list` images a folder, and returns their labels."""
    labels = [number * 7 % 3 % 2 for number in range(count)]
    for number, label in enumerate(labels):
        batch, index = divmod(number, a_list)
        path = folder / 'imgs' / str(batch) / f'sample_{index}.png'
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((side, side), number, np.uint8)).save(path)
        (folder / 'metadata').mkdir(exist_ok=True)
        with (folder / 'metadata' / f'{batch}.npy').open('a') as file:
            file.write(f'imgs/{batch} sample_{index}.png {index} {label} 1.0 14 4 2 0.5 1 2.0,0.75,1.0\n')
    return labels


def test_pictures_are_divided_in_the_order_of_their_lists(tmp_path: Path):
    labels = write_pictures(tmp_path, 50)  # Folders 0 to 12: folder 10 comes after 9, not after 1.
    found = open_arena_dataset(f'pathfinder:folder={tmp_path}', 'examples.train')
    assert (found.kind, found.vocabulary, found.labels) == ('pathfinder', 'grey', ('0', '1'))
    numbers = {split: [int(row.texts[0][0]) for row in found.rows(split)] for split in SPLITS}
    assert numbers == {'train': list(range(40)), 'dev': list(range(40, 45)), 'test': list(range(45, 50))}
    assert [row.label for split in SPLITS for row in found.rows(split)] == labels
    assert {(row.texts[0].shape, row.texts[0].dtype.name) for row in found.rows('dev')} == {((1024,), 'uint16')}
    digests = {split: found.digest(split) for split in SPLITS}
    Image.fromarray(np.zeros((32, 32), np.uint8)).save(tmp_path / 'imgs' / '11' / 'sample_3.png')  # number 47
    changed = [split for split in SPLITS if found.digest(split) != digests[split]]
    assert changed == ['test'] and len(set(digests.values())) == 3


def test_pictures_that_were_generated(tmp_path: Path):
    made = open_arena_dataset('pathfinder:rows=10:size=32:bars=4', 'x')
    [path] = write_original_format({'train': made}, tmp_path)
    found = open_arena_dataset(f'pathfinder:folder={path.parent.parent}', 'x')
    rows = [row for split in SPLITS for row in found.rows(split)]
    for row, one in zip(rows, made.rows('train'), strict=True):
        assert row.texts[0].tolist() == one.texts[0].tolist() and row.label == one.label


def test_an_empty_picture_is_left_out_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """An empty image file is skipped with a warning: one released file is empty, and the benchmark's code skips it."""
    write_pictures(tmp_path, 10)
    (tmp_path / 'imgs' / '0' / 'sample_2.png').write_bytes(b'')
    with caplog.at_level(logging.WARNING):
        rows = list(open_arena_dataset(f'pathfinder:folder={tmp_path}', 'x').rows('train'))
    assert [int(row.texts[0][0]) for row in rows] == [0, 1, 3, 4, 5, 6, 7]
    assert 'sample_2.png: the file is empty; the picture is left out' in caplog.text


def test_pictures_that_are_none(tmp_path: Path):
    with pytest.raises(
        InputError, match=r"/metadata: no file matches '\*\.npy'; the folder must hold metadata and imgs"
    ):
        pathfinder_metadata_files(tmp_path)
    write_pictures(tmp_path, 10)
    found = open_arena_dataset(f'pathfinder:folder={tmp_path}', 'x')
    Image.fromarray(np.zeros((64, 64), np.uint8)).save(tmp_path / 'imgs' / '0' / 'sample_1.png')
    with pytest.raises(InputError, match=r'sample_1\.png: the image is 64 x 64 .*; this task reads 32 x 32'):
        list(found.rows('train'))
    (tmp_path / 'imgs' / '0' / 'sample_0.png').unlink()
    with pytest.raises(InputError, match=r'sample_0\.png: not an image that can be read'):
        list(found.rows('train'))
    Image.fromarray(np.zeros((32, 48), np.uint8)).save(tmp_path / 'imgs' / '0' / 'sample_0.png')
    with pytest.raises(InputError, match=r'sample_0\.png: the image is 32 x 48 .*; Pathfinder has 16 x 16, '):
        list(found.rows('train'))
    (tmp_path / 'metadata' / '1.npy').write_text('imgs/1 sample_0.png 0 2 1.0\n')
    with pytest.raises(InputError, match=r'metadata/1\.npy: line 1: not as released, where a line begins like'):
        pathfinder_image_paths(tmp_path, 'dev')


@pytest.mark.parametrize('kind', ['listops', 'pathfinder'])
def test_what_is_read_is_not_written_again(tmp_path: Path, kind: str):
    with pytest.raises(InputError, match=f'^{kind}:folder=x is read from the original files; only generated rows'):
        write_original_format({'train': open_arena_dataset(f'{kind}:folder=x', 'x')}, tmp_path)


def test_no_option_stands_beside_the_folder():
    with pytest.raises(InputError, match="it has no option 'rows'$"):
        open_arena_dataset('listops:rows=3:folder=x', 'x')
