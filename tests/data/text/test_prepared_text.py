"""Tests of a prepared text on disk: memory-mapped, of the smallest integer type, and refused if a byte differs."""

import json

import numpy as np
import pytest

from efficient_attention.config.data import DataConfig
from efficient_attention.data.preparation.cache_folder import MANIFEST, manifest_checksum
from efficient_attention.data.text.prepare import prepare_text
from efficient_attention.data.text.prepared_text import PreparedText, ids_path, open_text, token_dtype
from efficient_attention.errors import InputError


@pytest.fixture
def text(tmp_path) -> PreparedText:
    (tmp_path / 'a.txt').write_text('A small dog. ' * 30)
    config = DataConfig(source=f'text:{tmp_path}/a.txt', cache=str(tmp_path), units='characters', splitting='end')
    return prepare_text(config, show_progress=False)


@pytest.mark.parametrize(
    'size, kind', [(1, '<u1'), (256, '<u1'), (257, '<u2'), (65_536, '<u2'), (65_537, '<u4'), (267_735, '<u4')]
)
def test_ids_lie_in_the_smallest_type(size, kind):
    assert token_dtype(size) == kind and np.iinfo(kind).max >= size - 1


def test_splits_are_mapped_not_read(text):
    assert isinstance(text.splits['train'], np.memmap) and text.splits['train'].dtype == np.uint8
    assert not text.splits['train'].flags.writeable
    assert len(text.splits['test']) == 0


def test_an_opened_text_is_the_prepared_one(text):
    again = open_text(text.folder)
    assert again.fingerprint == text.fingerprint and again.units.characters == text.units.characters
    np.testing.assert_array_equal(again.splits['held_out'], text.splits['held_out'])


def test_documents_start_behind_the_separator_before_them(tmp_path):
    documents = [f'Paragraph {"x" * number}.' for number in range(20)]
    (tmp_path / 'b.txt').write_text('\n\n'.join(documents))
    config = DataConfig(source=f'text:{tmp_path}/b.txt#paragraphs', cache=str(tmp_path), units='bytes', held_out=0.3)
    text = prepare_text(config, show_progress=False)
    read = []
    for split, starts in text.document_starts.items():
        assert starts.dtype == np.int64 and len(starts) == text.manifest['counts'][split]['documents']
        read += ''.join(text.units.decode(part) for part in np.split(text.splits[split], starts)).split('\n\n')
        assert all(part.tobytes().endswith(b'\n\n') for part in np.split(text.splits[split], starts[1:])[:-1])
    assert sorted(filter(None, read)) == sorted(documents) and not len(text.document_starts['test'])


def test_rows_know_the_splits_documents(text):
    rows = text.rows('train', 16, cut_at_documents=True)
    assert (rows.length, rows.cut_at_documents, rows.start) == (16, True, -1)
    assert rows.ids is text.splits['train'] and rows.document_starts is text.document_starts['train']


@pytest.mark.parametrize('name', ['train.ids', 'train_starts.npy', 'unigram_counts.npy', 'characters.json', MANIFEST])
def test_a_damaged_or_missing_file_is_named(text, name):
    path = text.folder / name
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    for fault in ('damaged', 'missing'):
        with pytest.raises(InputError) as caught:
            open_text(text.folder)
        message = str(caught.value)
        assert fault in message and name in message and str(text.folder) in message and '\n' not in message
        path.unlink(missing_ok=True)


def test_another_format_is_refused(text):
    path = text.folder / MANIFEST
    manifest = json.loads(path.read_text()) | {'format': 99}
    path.write_text(json.dumps(manifest | {'checksum': manifest_checksum(manifest)}))
    with pytest.raises(InputError, match='format 99, this version reads 2; delete the folder'):
        open_text(text.folder)


def test_where_ids_lie(text):
    assert ids_path(text.folder, 'train').stat().st_size == len(text.splits['train'])
