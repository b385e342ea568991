"""Tests of prepared texts: the content of the splits, the vocabulary, and when a cached text is used again."""

import dataclasses

import numpy as np
import pytest

from efficient_attention.config.data import DataConfig
from efficient_attention.data.text.prepare import prepare_text
from efficient_attention.data.text.prepared_text import ids_path
from efficient_attention.errors import InputError

TEXT = 'A dog sleeps. ' * 60 + 'Zebras!' + ' é漢' * 5


@pytest.fixture
def config(tmp_path) -> DataConfig:
    (tmp_path / 'a.txt').write_text(TEXT, encoding='utf-8')
    source, cache = f'text:{tmp_path}/a.txt', str(tmp_path / 'cache')
    return DataConfig(source=source, cache=cache, units='bytes', splitting='end', held_out=0.1, test=0.1)


def prepare(config: DataConfig, **fields):
    return prepare_text(dataclasses.replace(config, **fields), show_progress=False)


def test_bytes_of_all_splits_are_the_file(config):
    text = prepare(config)
    assert b''.join(text.splits[split].tobytes() for split in ('train', 'held_out', 'test')) == TEXT.encode()
    assert {split: len(ids) for split, ids in text.splits.items()} == {
        split: counts['tokens'] for split, counts in text.manifest['counts'].items()
    }
    np.testing.assert_array_equal(text.unigram_counts, np.bincount(text.splits['train'], minlength=256))


def test_characters_are_those_of_the_train_split(config):
    text = prepare(config, units='characters')
    train, test = (text.units.decode(text.splits[split]) for split in ('train', 'test'))
    assert TEXT.startswith(train) and set(text.units.characters) == set(train)
    assert not {'Z', '漢'} & set(text.units.characters)
    assert test.count('\ufffd') == text.manifest['counts']['test']['unknown'] > 0
    assert text.manifest['counts']['train']['unknown'] == 0
    assert (text.splits['test'] == 0).sum() == test.count('\ufffd')


def test_words_are_those_of_the_train_split(config, tmp_path):
    lines = [f'The dog sees number {number % 7} .' for number in range(60)] + ['A zebra .'] * 5
    (tmp_path / 'a.txt').write_text('\n'.join(lines))
    text = prepare(config, units='words', lowercase=False)
    assert '\n'.join(lines) + '\n' == ''.join(text.units.decode(text.splits[split]) for split in text.splits).replace(
        '<unk> <unk> .', 'A zebra .'
    )
    assert text.manifest['counts']['train']['unknown'] == 0 < text.manifest['counts']['test']['unknown']
    assert text.unigram_counts[0] == text.units.decode(text.splits['train']).count('\n')
    assert (np.diff(text.unigram_counts[1:]) <= 0).all()
    rare = prepare(config, units='words', lowercase=False, min_count=9)
    assert rare.units.size < text.units.size and rare.manifest['counts']['train']['unknown'] > 0
    assert 'the' in prepare(config, units='words').units.words and 'the' not in text.units.words


def test_documents_are_separated_and_held_out_whole(config, tmp_path):
    documents = [f'Paragraph {number} ends.' for number in range(20)]
    (tmp_path / 'b.txt').write_text('\n\n'.join(documents))
    fields = {'splitting': 'documents', 'test': 0.0, 'held_out': 0.3, 'source': f'text:{tmp_path}/b.txt#paragraphs'}
    for units in ('bytes', 'characters'):
        text = prepare(config, units=units, **fields)
        read = {split: text.units.decode(ids).split('\n\n') for split, ids in text.splits.items()}
        assert sorted(read['train'] + read['held_out']) == sorted(documents) and len(text.splits['test']) == 0


def test_a_tokenizers_pieces_end_documents_with_its_separator(config, tmp_path):
    documents = [f'The dog number {number} sleeps near the old tree.' for number in range(20)]
    (tmp_path / 'b.txt').write_text('\n\n'.join(documents))
    source = f'text:{tmp_path}/b.txt#paragraphs'
    fields = {'splitting': 'documents', 'test': 0.0, 'held_out': 0.3, 'source': source, 'units': 'tokenizer'}
    text = prepare(config, tokenizer='train:bpe', vocab_size=300, lowercase=False, **fields)
    (separator,) = text.units.separator
    counts = text.manifest['counts']
    assert counts['train']['documents'] + counts['held_out']['documents'] == 20
    for split in ('train', 'held_out'):
        ids = text.splits[split]
        assert (ids == separator).sum() == counts[split]['documents'] - 1
        first = text.units.decode(ids[: int(np.argmax(ids == separator))])
        assert first.strip() in documents

    saved = tmp_path / 'saved'
    saved.mkdir()
    text.units.save(saved)
    loaded = prepare(config, tokenizer=str(saved / 'tokenizer.json'), lowercase=False, **fields)
    np.testing.assert_array_equal(loaded.splits['train'], text.splits['train'])
    assert loaded.folder != text.folder


def test_a_prepared_text_is_used_again(config):
    first = prepare(config)
    before = ids_path(first.folder, 'train').stat().st_mtime_ns
    again = prepare(config)
    assert (again.folder, again.fingerprint) == (first.folder, first.fingerprint)
    assert ids_path(again.folder, 'train').stat().st_mtime_ns == before


def test_built_elsewhere_it_is_the_same_text(config, tmp_path):
    assert prepare(config, cache=str(tmp_path / 'other')).fingerprint == prepare(config).fingerprint


@pytest.mark.parametrize('fields', [{'units': 'characters'}, {'held_out': 0.2}, {'test': 0.0}, {'units': 'words'}])
def test_another_setting_is_another_text(config, fields):
    assert prepare(config, **fields).folder != prepare(config).folder


def test_a_changed_file_is_another_text(config, tmp_path):
    before = prepare(config)
    (tmp_path / 'a.txt').write_text(TEXT + '.', encoding='utf-8')
    after = prepare(config)
    assert after.folder != before.folder and after.fingerprint != before.fingerprint


@pytest.mark.parametrize(
    'fields, line',
    [
        ({'tokenizer': 'train:words'}, "data.tokenizer is 'train:words'; known: train:"),
        ({'tokenizer': 'none.json'}, 'tokenizer none.json: cannot be read'),
        ({'source': 'text:none.txt'}, "data.source 'text:none.txt': no file matches 'none.txt'"),
    ],
)
def test_bad_input_is_one_line(config, fields, line):
    with pytest.raises(InputError) as caught:
        prepare(config, units='tokenizer', **fields)
    assert str(caught.value).startswith(line) and '\n' not in str(caught.value)
