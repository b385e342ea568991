"""A prepared text on disk: memory-mapped in the smallest type, and refused where a byte differs."""

import json

import numpy as np
import pytest

from efficient_attention.data.config import DataConfig
from efficient_attention.data.corpus import MANIFEST, manifest_checksum
from efficient_attention.data.prepare_text import prepare_text
from efficient_attention.data.token_text import TokenText, id_type, ids_path, open_text
from efficient_attention.errors import InputError


@pytest.fixture
def text(tmp_path) -> TokenText:
    (tmp_path / 'a.txt').write_text('A small dog. ' * 30)
    config = DataConfig(source=f'text:{tmp_path}/a.txt', cache=str(tmp_path), units='characters', splitting='end')
    return prepare_text(config, show_progress=False)


@pytest.mark.parametrize(
    'size, kind', [(1, '<u1'), (256, '<u1'), (257, '<u2'), (65_536, '<u2'), (65_537, '<u4'), (267_735, '<u4')]
)
def test_ids_lie_in_the_smallest_type(size, kind):
    assert id_type(size) == kind and np.iinfo(kind).max >= size - 1


def test_splits_are_mapped_not_read(text):
    assert isinstance(text.splits['train'], np.memmap) and text.splits['train'].dtype == np.uint8
    assert not text.splits['train'].flags.writeable
    assert len(text.splits['test']) == 0


def test_an_opened_text_is_the_prepared_one(text):
    again = open_text(text.folder)
    assert again.fingerprint == text.fingerprint and again.units.characters == text.units.characters
    np.testing.assert_array_equal(again.splits['held_out'], text.splits['held_out'])


@pytest.mark.parametrize('name', ['train.ids', 'unigram_counts.npy', 'characters.json', MANIFEST])
def test_a_damaged_or_missing_file_is_named(text, name):
    path = text.folder / name
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    line = f'{path}: missing or damaged; delete the folder {text.folder} to prepare the text again'
    for _ in range(2):
        with pytest.raises(InputError) as caught:
            open_text(text.folder)
        assert str(caught.value) == line
        path.unlink(missing_ok=True)


def test_another_format_is_refused(text):
    path = text.folder / MANIFEST
    manifest = json.loads(path.read_text()) | {'format': 99}
    path.write_text(json.dumps(manifest | {'checksum': manifest_checksum(manifest)}))
    with pytest.raises(InputError, match='format 99, this version reads 1; delete the folder'):
        open_text(text.folder)


def test_where_ids_lie(text):
    assert ids_path(text.folder, 'train').stat().st_size == len(text.splits['train'])
