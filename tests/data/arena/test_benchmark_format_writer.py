"""Tests that generated data sets written as Long Range Arena files are what the benchmark's own loaders expect."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from efficient_attention.data.arena.benchmark_format_writer import listops_bracket_text, write_original_format
from efficient_attention.data.arena.dataset_registry import open_arena_dataset
from efficient_attention.data.arena.imdb_cifar10_aan_readers import citation_pair_file, citation_pair_rows
from efficient_attention.data.tokenizers.fixed_vocabulary import FIRST_WORD, fixed_tokenizer
from efficient_attention.errors import InputError


def sets_of(text: str, splits: tuple[str, ...] = ('train', 'dev', 'test')) -> dict:
    return {split: open_arena_dataset(text, split) for split in splits}


def test_parentheses_stand_round_an_operator_and_each_argument():
    assert listops_bracket_text('[MAX 1 2 ]'.split()) == '( ( ( [MAX 1 ) 2 ) ] )'
    assert listops_bracket_text('[MIN 4 [SM 5 6 ] ]'.split()) == '( ( ( [MIN 4 ) ( ( ( [SM 5 ) 6 ) ] ) ) ] )'
    with pytest.raises(ValueError, match='the words are no tree'):
        listops_bracket_text(['[MAX', '1'])


def test_listops(tmp_path: Path):
    sets = sets_of('listops:rows=4:length=8-40')
    paths = write_original_format(sets, tmp_path)
    assert [path.name for path in paths] == ['basic_train.tsv', 'basic_val.tsv', 'basic_test.tsv']
    header, *lines = paths[1].read_text().splitlines()
    assert header == 'Source\tTarget'
    for line, row in zip(lines, sets['dev'].rows('dev'), strict=True):
        source, target = line.split('\t')
        assert fixed_tokenizer('fixed:listops').encode(source).ids == (row.texts[0] + FIRST_WORD).tolist()
        assert target == str(row.label) and source.count('(') == source.count(')')


def test_images(tmp_path: Path):
    sets = sets_of('pathfinder:rows=2:size=32:bars=4', ('train', 'dev'))
    [metadata] = write_original_format(sets, tmp_path)
    assert metadata == tmp_path / 'pathfinder32' / 'curv_contour_length_4' / 'metadata' / '0.npy'
    rows = [row for split in ('train', 'dev') for row in sets[split].rows(split)]
    for line, row in zip(metadata.read_text().splitlines(), rows, strict=True):
        folder, name, _, label, *settings = line.split()
        assert settings == '1.0 4 1 2 0.5 1 150,200,100'.split()
        pixels = np.asarray(Image.open(metadata.parent.parent / folder / name))
        assert pixels.ravel().tolist() == row.texts[0].tolist() and label == str(row.label)


@pytest.mark.parametrize('bars, name', [('easy', 'curv_baseline'), ('intermediate', 'curv_contour_length_9')])
def test_the_folder_of_images_has_the_name_of_their_difficulty(bars: str, name: str, tmp_path: Path):
    [metadata] = write_original_format(sets_of(f'pathfinder:rows=1:size=32:bars={bars}', ('train',)), tmp_path)
    assert metadata == tmp_path / 'pathfinder32' / name / 'metadata' / '0.npy'


def test_images_where_no_folder_can_be_is_one_line(tmp_path: Path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(InputError, match=r'file/pathfinder32/.*/sample_0.png: cannot be written \(Not a directory\)$'):
        write_original_format(sets_of('pathfinder:rows=1:size=32:bars=4', ('train',)), tmp_path / 'file')


def test_images_of_another_call_are_not_mixed_in(tmp_path: Path):
    sets = sets_of('pathfinder:rows=1:size=32:bars=4', ('train',))
    write_original_format(sets, tmp_path)
    with pytest.raises(InputError, match=r'curv_contour_length_4 has files already, .* name another folder$'):
        write_original_format(sets, tmp_path)


def test_passages_are_read_again_as_pairs(tmp_path: Path):
    sets = sets_of('passages:rows=3:length=40:source=stdlib')
    write_original_format(sets, tmp_path)
    for again, row in zip(
        citation_pair_rows(citation_pair_file(tmp_path, 'dev')), sets['dev'].rows('dev'), strict=True
    ):
        assert again.label == row.label
        assert bytes(again.texts[0].astype(np.uint8)).split() == bytes(row.texts[0].astype(np.uint8)).split()


@pytest.mark.parametrize(
    'text, name',
    [
        ('passages:rows=1:length=40:source=stdlib', 'new_aan_pairs.eval.tsv'),
        ('listops:rows=1:length=8-40', 'basic_val.tsv'),
    ],
)
def test_no_file_is_overwritten(tmp_path: Path, text: str, name: str):
    """Existing files stay: the original AAN pairs have the same names, and nobody can download them again."""
    (tmp_path / name).write_text('original')
    with pytest.raises(InputError, match=f'{name} is there already; remove it or name another folder$'):
        write_original_format(sets_of(text, ('train', 'dev')), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == 'original'


@pytest.mark.parametrize('other', ['size=64:bars=4', 'size=32:bars=5', 'size=32:bars=4:distractors=0:starts=fixed'])
def test_images_of_one_kind_alone(other: str, tmp_path: Path):
    sets = {
        'train': open_arena_dataset('pathfinder:rows=1:size=32:bars=4', 'x'),
        'dev': open_arena_dataset(f'pathfinder:rows=1:{other}', 'x'),
    }
    with pytest.raises(InputError, match='^the datasets differ in size, bars, distractors or starts of their images'):
        write_original_format(sets, tmp_path)
    assert not list(tmp_path.iterdir())


def test_kinds_that_are_not_written(tmp_path: Path):
    mixed = sets_of('recall:rows=1:length=9:pairs=1', ('dev',)) | sets_of('listops:rows=1:length=8-40', ('train',))
    for sets, found in ((mixed, 'listops, recall'), ({'dev': open_arena_dataset('imdb:folder=x', 'dev')}, 'imdb')):
        with pytest.raises(
            InputError, match=f'^the datasets are of {found}; write one kind at a time: listops, recall'
        ):
            write_original_format(sets, tmp_path)
