"""Tests that texts such as `pathfinder:rows=30:size=32` open the right long-range data sets."""

import hashlib

import pytest

from efficient_attention.data.arena.dataset_interface import is_hashed_to_split
from efficient_attention.data.arena.dataset_registry import open_arena_dataset
from efficient_attention.data.arena.listops import listops_row
from efficient_attention.data.tokenizers.fixed_vocabulary import FIRST_WORD, fixed_vocabulary_size
from efficient_attention.errors import InputError

SPLITS = ('train', 'dev', 'test')
FIRST = {  # For each split: SHA-256 of the images and of the labels
    'pathfinder:rows=30:size=32:bars=easy': (
        'cc4f60ea59e35189ffd43cad190447ab2e83d5909aa91865bd1816b72b050900',
        'cbba6949dac5728108d901ba357bc97b50ec622332f9c35ae092332579e04af9',
        '54e37098bacbd4fa1f699266ff43cb312a84e474dd51205fa29745228627a206',
    ),
    'pathfinder:rows=30:size=20:bars=easy:starts=fixed': (
        '45a1cb630c35d8ad6407f6d5b8af28cb56791990929733a2298fd1011e275899',
        'ca99aa0f0a8dcb26291a40ca9617d314669ad77f40d729367a65035d5da8a383',
        '271d4f66215d43d7e631a1f2a9ae2d811175acdc2b25eba8fa0746074af6b700',
    ),
    'pathfinder:rows=30:size=32': (
        '621be24a76a9218e799cadf11728951c95e17f17a3cfcd223c73896d0e0be202',
        '658aa33204bf5e2bf6fee76b3a8261db8bcdfecb76bfaa2cf492422b73f20447',
        '4b60730bdbeab310d6db0466f17dbeb5192b89b94ee46924b6a039952ca3e3ec',
    ),
}
SETS = {
    'listops:rows=3:length=10-40:seed=5': (1, 10),
    'recall:rows=3:length=12:pairs=2': (1, 16),
    'recall:rows=3:length=3:pairs=1:keys=1:values=2': (1, 2),
    'passages:rows=3:length=64:source=stdlib': (2, 2),
    'pathfinder:rows=3:size=32:bars=4:distractors=0': (1, 2),
}


@pytest.mark.parametrize('text', SETS)
def test_generated_sets(text: str):
    found = open_arena_dataset(text, 'examples.train')
    texts, labels = SETS[text]
    rows = list(found.rows('dev'))
    assert len(rows) == 3 and found.texts == texts and len(found.labels) == labels
    for row in rows:
        assert len(row.texts) == texts and 0 <= row.label < labels
        assert all(
            text.dtype == 'uint16' and text.max() < fixed_vocabulary_size(found.vocabulary) - FIRST_WORD
            for text in row.texts
        )


def test_options_reach_the_generator():
    [row] = open_arena_dataset('listops:rows=1:seed=5:length=10-40', 'x').rows('test')
    assert row.texts[0].tolist() == listops_row(5, 'test', 0, 10, 40).texts[0].tolist()
    assert open_arena_dataset('pathfinder:rows=1:size=32:bars=easy', 'x').bars == 6


@pytest.mark.parametrize(
    'text, line',
    [
        ('chess:rows=1', 'known kinds of rows: listops, pathfinder, recall, passages, imdb, cifar10, aan'),
        ('', 'known kinds of rows'),
        ('listops:length=10-40', 'rows=... is missing'),
        ('listops:rows=2:lenth=10-40', "length=... is missing; 'lenth' is no option"),
        ('listops:rows=0:length=10-40', 'rows must be a whole number of at least 1'),
        ('listops:rows=2:length=40-10', 'length must be <shortest>-<longest>, with a whole number between them'),
        ('listops:rows=2:length=1-3', 'length must allow a tree of at least 4 words'),
        ('listops:rows=2:rows=3:length=1-9', 'an option is given twice'),
        ('listops:rows=2:length=10-40:depth=3', "it has no option 'depth'"),
        ('pathfinder:rows=2:size=48', 'size must be one of 16, 20, 32, 64, 128, 256'),
        ('pathfinder:rows=2:size=32:starts=left', 'starts must be drawn or fixed'),
        (
            'pathfinder:rows=2:size=16:starts=fixed',
            'starts must be drawn with size 16, which has few images with fixed ones',
        ),
        ('pathfinder:rows=2:size=32:bars=1', 'bars must be a whole number of at least 2'),
        ('recall:rows=2:length=8:pairs=7', 'pairs must be at most 64, the keys, and 6, the words without query and'),
        ('recall:rows=2:length=8:pairs=4:keys=3', 'pairs must be at most 3, the keys, and 6'),
        ('recall:rows=2:length=8:pairs=4:keys=65', 'keys must be at most 64'),
        ('recall:rows=2:length=8:pairs=4:values=1', 'values must be a whole number of at least 2'),
        ('passages:rows=2:length=8', 'source=... is missing'),
        ('imdb', 'folder=... is missing'),
    ],
)
def test_texts_that_are_none(text: str, line: str):
    with pytest.raises(InputError) as error:
        open_arena_dataset(text, 'examples.train')
    assert str(error.value).startswith(f'examples.train is {text!r}; {line}')


@pytest.mark.parametrize('text', FIRST)
def test_the_first_images_of_each_split(text: str):
    images = {
        split: [(row.texts[0].tobytes(), row.label) for row in open_arena_dataset(text, 'x').rows(split)]
        for split in SPLITS
    }
    for (split, rows), wanted in zip(images.items(), FIRST[text], strict=True):
        content = b''.join(pixels + bytes([label]) for pixels, label in rows)
        assert hashlib.sha256(content).hexdigest() == wanted, split
    assert not {pixels for pixels, _ in images['train']} & {pixels for pixels, _ in images['dev'] + images['test']}


@pytest.mark.parametrize('options', ['size=16:bars=2', 'size=20:bars=2', 'size=32:bars=2:distractors=0:starts=fixed'])
def test_no_split_of_few_images_can_have_one_of_another(options: str):
    found = open_arena_dataset(f'pathfinder:rows=40:{options}', 'x')
    assert all(is_hashed_to_split(row.texts[0], split) for split in SPLITS for row in found.rows(split))
