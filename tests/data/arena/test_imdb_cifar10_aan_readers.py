"""Tests of the readers of IMDb reviews, CIFAR-10 images and AAN pairs, and of their errors for bad files."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from efficient_attention.data.arena.dataset_registry import open_arena_dataset
from efficient_attention.data.arena.imdb_cifar10_aan_readers import (
    PAIR_FILES,
    citation_pair_file,
    citation_pair_rows,
    grey_pixels,
    image_files,
    image_labels,
    image_rows,
    is_held_out,
    review_files,
    review_rows,
)
from efficient_attention.data.arena.row_cache import cached_rows
from efficient_attention.errors import InputError


def write_reviews(folder: Path) -> None:
    for part in ('train', 'test'):
        for label in ('neg', 'pos'):
            (folder / part / label).mkdir(parents=True)
            for number in range(30):
                (folder / part / label / f'{number}_1.txt').write_bytes(f'{part} {label} {number} é'.encode())


def test_the_name_of_a_folder_is_no_pattern(tmp_path: Path):
    folder = tmp_path / 'films[1], *a:b'
    write_reviews(folder)
    found = open_arena_dataset(f'imdb:folder={folder}', 'examples.test')
    assert len(list(found.rows('test'))) == 60 and len(found.digest('test')) == 64


def test_rows_with_labels_are_those_of_their_classes(tmp_path: Path):
    """Each row has the label of its own folder, even if another folder holds the same files in the same order."""
    found = []
    for name, negative in (('a', '01'), ('b', '0'), ('moved', '01')):
        for number in '0123':
            path = tmp_path / name / 'test' / ('neg' if number in negative else 'pos') / f'{number}_1.txt'
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f'film {number}')
        found.append(open_arena_dataset(f'imdb:folder={tmp_path / name}', 'examples.test'))
    classes = [one.class_file_counts('test') for one in found]
    assert classes == [{'neg': 2, 'pos': 2}, {'neg': 1, 'pos': 3}, {'neg': 2, 'pos': 2}]
    # The digest ignores class folders; a run's fingerprint contains it.
    assert len({one.digest('test') for one in found}) == 1
    rows = [[row.label for row in cached_rows(one, 'test', tmp_path / 'cache')] for one in found]
    assert rows == [[0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1]]


def test_reviews(tmp_path: Path):
    write_reviews(tmp_path)
    found = {split: list(review_rows(review_files(tmp_path, split), split)) for split in ('train', 'dev', 'test')}
    texts = {split: [bytes(row.texts[0].astype(np.uint8)) for row in rows] for split, rows in found.items()}
    assert len(texts['train']) + len(texts['dev']) == 60 and len(texts['test']) == 60 and texts['dev']
    assert all(map(is_held_out, texts['dev'])) and not any(map(is_held_out, texts['train']))
    for row in found['test']:
        assert bytes(row.texts[0].astype(np.uint8)).decode().split()[1] == ('neg', 'pos')[row.label]
    with pytest.raises(
        InputError, match=r'nowhere/train: no file matches .*; there must be a folder of each class: neg'
    ):
        review_files(tmp_path / 'nowhere', 'train')


def write_images(folder: Path, side: int = 32) -> None:
    for part in ('train', 'test'):
        for label in ('cat', 'dog'):
            (folder / part / label).mkdir(parents=True)
            for number in range(20):
                pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / label / f'{number}.png')


def test_images(tmp_path: Path):
    write_images(tmp_path)
    labels = image_labels(tmp_path)
    assert labels == ('cat', 'dog')
    rows = [row for split in ('train', 'dev') for row in image_rows(image_files(tmp_path, split), split, labels)]
    assert len(rows) == 40 and sorted({row.label for row in rows}) == [0, 1]
    assert {row.texts[0].shape for row in rows} == {(1024,)} and max(row.texts[0].max() for row in rows) > 200
    colours = np.asarray(Image.open(tmp_path / 'train' / 'cat' / '3.png'), np.float64)
    expected = 0.2989 * colours[..., 0] + 0.587 * colours[..., 1] + 0.114 * colours[..., 2]
    assert np.abs(grey_pixels(tmp_path / 'train' / 'cat' / '3.png').reshape(32, 32) - expected).max() <= 0.5


def test_images_that_are_none(tmp_path: Path):
    write_images(tmp_path, side=16)
    with pytest.raises(InputError, match=r'0\.png: the image is 16 x 16 \(height x width\); this task reads 32 x 32'):
        grey_pixels(tmp_path / 'train' / 'cat' / '0.png')
    (tmp_path / 'bad.png').write_bytes(b'no image')
    with pytest.raises(InputError, match=r'bad\.png: not an image that can be read'):
        grey_pixels(tmp_path / 'bad.png')
    with pytest.raises(InputError, match='no folder of images for each of at least two classes'):
        image_labels(tmp_path / 'nowhere')


def test_pairs(tmp_path: Path):
    with pytest.raises(InputError, match=r"train\.tsv: no such file; AAN's pairs may not be redistributed"):
        citation_pair_file(tmp_path, 'train')
    path = tmp_path / PAIR_FILES['train']
    path.write_text('1.0\ta\tb\tone "text\tother\n0\ta\tc\tx\ty\n')
    first, second = citation_pair_rows(citation_pair_file(tmp_path, 'train'))
    assert (first.label, second.label) == (1, 0)
    assert [bytes(text.astype(np.uint8)) for text in first.texts] == [b'one "text', b'other']
    path.write_text('1.0\ta\tb\tone\n')
    with pytest.raises(InputError, match=r'line 1: 4 columns; there must be label, id, id, text, text'):
        list(citation_pair_rows(path))
    path.write_text('2.0\ta\tb\tone\ttwo\n')
    with pytest.raises(InputError, match=r"line 1: the label is '2\.0'; known: 0\.0, 1\.0"):
        list(citation_pair_rows(path))
