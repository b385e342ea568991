"""Tests of the training and held-out splits of a text: together they are the source, and they do not overlap."""

import itertools

import pytest

from efficient_attention.config.data import DataConfig
from efficient_attention.data.sources.text_source import TextSource
from efficient_attention.data.text.splits import SPLITS, split_text
from efficient_attention.errors import InputError

DOCUMENTS = [f'Document {number} says é{"!" * (number % 5)}' for number in range(40)]


def source_of(documents: list[str]) -> TextSource:
    return TextSource(text='text:x', digest=lambda: 'x', documents=lambda: iter(documents))


def parts_of(documents: list[str], **fields) -> dict[str, list]:
    parts = split_text(source_of(documents), DataConfig(**fields))
    first, second = list(parts()), list(parts())
    assert first == second
    return {split: [text for name, text in first if name == split] for split in SPLITS}


def test_documents_are_held_out_whole_whatever_their_order():
    parts = parts_of(DOCUMENTS, held_out=0.3, units='characters')
    assert sorted(parts['train'] + parts['held_out']) == sorted(DOCUMENTS) and not parts['test']
    assert 4 <= len(parts['held_out']) <= 20
    backwards = parts_of(DOCUMENTS[::-1], held_out=0.3, units='characters')
    assert backwards['held_out'] == parts['held_out'][::-1]


@pytest.mark.parametrize('units', ['characters', 'bytes', 'tokenizer'])
def test_the_end_is_held_out_by_its_share(units):
    parts = parts_of(DOCUMENTS, splitting='end', held_out=0.1, test=0.05, units=units)
    joined = [text for split in SPLITS for text in parts[split]]
    whole = b''.join(joined).decode() if units == 'bytes' else ''.join(joined)
    assert whole == ''.join(DOCUMENTS)
    total = len(whole.encode()) if units == 'bytes' else len(whole)
    lengths = {split: sum(map(len, parts[split])) for split in SPLITS}
    assert lengths['train'] == round(0.85 * total) and lengths['train'] + lengths['held_out'] == round(0.95 * total)


def test_enwik8_is_cut_at_its_90th_and_95th_million():
    parts = split_text(source_of(['x' * 10**6] * 100), DataConfig(splitting='end', held_out=0.05, test=0.05))
    lengths = {
        split: sum(len(text) for _, text in group) for split, group in itertools.groupby(parts(), lambda p: p[0])
    }
    assert lengths == {'train': 90_000_000, 'held_out': 5_000_000, 'test': 5_000_000}


def test_bytes_are_cut_where_the_share_says_even_inside_a_character():
    parts = parts_of(['é' * 5], splitting='end', held_out=0.1, units='bytes')
    assert parts['train'] == ['é'.encode() * 4 + b'\xc3'] and parts['held_out'] == [b'\xa9']


@pytest.mark.parametrize('held_out', [0.05, 0.2, 0.5, 0.9])
def test_words_are_cut_behind_a_whole_line(held_out):
    documents = ['one two\n\nthree', 'four\nfive six\nseven\n', 'eight']
    parts = parts_of(documents, splitting='end', held_out=held_out, test=0.05, units='words')
    lines = [line for split in SPLITS for text in parts[split] for line in text.removesuffix('\n').split('\n')]
    assert lines == ['one two', '', 'three', 'four', 'five six', 'seven', 'eight']


def test_images_are_cut_between_two_of_them():
    images = [bytes([number]) * 12 for number in range(1, 11)]
    fields = {'units': 'pixels', 'source': 'images:*', 'image_shape': (2, 2, 3), 'length': 12, 'splitting': 'end'}
    for held_out, test, sizes in [(0.1, 0.1, [8, 1, 1]), (0.26, 0.0, [7, 3, 0]), (0.02, 0.02, [10, 0, 0])]:
        parts = parts_of(images, held_out=held_out, test=test, **fields)
        assert [image for split in SPLITS for image in parts[split]] == images
        assert [len(parts[split]) for split in SPLITS] == sizes


@pytest.mark.parametrize(
    'documents, fields, line',
    [
        ([], {}, "data.source 'text:x': no text in it"),
        ([], {'splitting': 'end'}, "data.source 'text:x': no text in it"),
        (
            ['one'],
            {},
            "data.source 'text:x': it is one document, so none is left to hold out; use --config.data.splitting="
            'end to hold out its end, or --config.data.held_out=0 to train without evaluation',
        ),
    ],
)
def test_text_that_cannot_be_split_is_refused(documents, fields, line):
    with pytest.raises(InputError) as caught:
        split_text(source_of(documents), DataConfig(**fields))
    assert str(caught.value) == line
