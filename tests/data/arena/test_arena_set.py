"""Sets of rows by their short texts."""

import hashlib

import pytest

from efficient_attention.data.arena.arena_row import is_of_split
from efficient_attention.data.arena.arena_set import open_set
from efficient_attention.data.arena.listops import listops_row
from efficient_attention.data.tokenizers.fixed import FIRST_WORD, vocabulary_size
from efficient_attention.errors import InputError

SPLITS = ('train', 'dev', 'test')
FIRST = {  # of each split, SHA-256 of the images and labels
    'pathfinder:rows=100:size=32:bars=easy': (
        'd479395d9ba607e295716d3a142a7b24a828a97d1833c24cbd3be8a0db78147e',
        'e6ab2e8ae4d7e35bbdc9796580c95703f07fcdadf5a4e399ae5dfff9f384add9',
        '791404c692b7db922408be560f9bd834aa8f278825ed8e61655e5c6150f2b1cd',
    ),
    'pathfinder:rows=100:size=20:bars=easy:starts=fixed': (
        '5ecf8e49a189ed81c61f0847c7e622c0f392cb10434f0d74bd4c50bb4e5763b9',
        'a0aeeba92b18ba1c3777a7880ae126f07a31992f03647b3528357669a74f2e09',
        '3e204033ed6e6608a03b2e4d1295fa5bb96c74f129c6f2ed7a85f88deb748645',
    ),
    'pathfinder:rows=100:size=32': (
        '99f05bf76ce566147c9aa3c12a53240cad6012731ad095baa75cadc83a608f1b',
        '9ffa4850f3f9085d1ee994bb0e89dadd9d0519ea90e729204baa5ea8094e5b39',
        'a418da367e930fa8d8077ea5c53f103872b6812860480b70e3a4d6834417b1f7',
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
    found = open_set(text, 'examples.train')
    texts, labels = SETS[text]
    rows = list(found.rows('dev'))
    assert len(rows) == 3 and found.texts == texts and len(found.labels) == labels
    for row in rows:
        assert len(row.texts) == texts and 0 <= row.label < labels
        assert all(
            text.dtype == 'uint16' and text.max() < vocabulary_size(found.vocabulary) - FIRST_WORD for text in row.texts
        )


def test_options_reach_the_generator():
    [row] = open_set('listops:rows=1:seed=5:length=10-40', 'x').rows('test')
    assert row.texts[0].tolist() == listops_row(5, 'test', 0, 10, 40).texts[0].tolist()
    assert open_set('pathfinder:rows=1:size=32:bars=easy', 'x').bars == 6


@pytest.mark.parametrize(
    'text, line',
    [
        ('chess:rows=1', 'known kinds of rows: listops, pathfinder, recall, passages, imdb, cifar10, aan'),
        ('', 'known kinds of rows'),
        ('listops:length=10-40', 'rows=... is missing'),
        ('listops:rows=2:lenth=10-40', "length=... is missing; 'lenth' is no option"),
        ('listops:rows=0:length=10-40', 'rows must be a whole number of at least 1'),
        ('listops:rows=2:length=40-10', 'length must be <shortest>-<longest>, with a whole number between them'),
        ('listops:rows=2:length=1-3', 'length must let in a tree of at least 4 words'),
        ('listops:rows=2:rows=3:length=1-9', 'an option comes twice'),
        ('listops:rows=2:length=10-40:depth=3', "it has no option 'depth'"),
        ('pathfinder:rows=2:size=48', 'size must be one of 16, 20, 32, 64, 128, 256'),
        ('pathfinder:rows=2:size=32:starts=left', 'starts must be drawn or fixed'),
        (
            'pathfinder:rows=2:size=16:starts=fixed',
            'starts must be drawn with size 16, which has few images with fixed ones',
        ),
        ('pathfinder:rows=2:size=32:bars=1', 'bars must be a whole number of at least 2'),
        ('recall:rows=2:length=8:pairs=7', 'pairs must be at most 64, the keys, and 6: the query and filler have a'),
        ('recall:rows=2:length=8:pairs=4:keys=3', 'pairs must be at most 3, the keys, and 6'),
        ('recall:rows=2:length=8:pairs=4:keys=65', 'keys must be at most 64'),
        ('recall:rows=2:length=8:pairs=4:values=1', 'values must be a whole number of at least 2'),
        ('passages:rows=2:length=8', 'source=... is missing'),
        ('imdb', 'folder=... is missing'),
    ],
)
def test_texts_that_are_none(text: str, line: str):
    with pytest.raises(InputError) as error:
        open_set(text, 'examples.train')
    assert str(error.value).startswith(f'examples.train is {text!r}; {line}')


@pytest.mark.parametrize('text', FIRST)
def test_the_first_images_of_each_split(text: str):
    images = {
        split: [(row.texts[0].tobytes(), row.label) for row in open_set(text, 'x').rows(split)] for split in SPLITS
    }
    for (split, rows), wanted in zip(images.items(), FIRST[text], strict=True):
        content = b''.join(pixels + bytes([label]) for pixels, label in rows)
        assert hashlib.sha256(content).hexdigest() == wanted, split
    assert not {pixels for pixels, _ in images['train']} & {pixels for pixels, _ in images['dev'] + images['test']}


@pytest.mark.parametrize('options', ['size=16:bars=2', 'size=20:bars=2', 'size=32:bars=2:distractors=0:starts=fixed'])
def test_no_split_of_few_images_can_have_one_of_another(options: str):
    found = open_set(f'pathfinder:rows=40:{options}', 'x')
    assert all(is_of_split(row.texts[0], split) for split in SPLITS for row in found.rows(split))
