"""Tests of cached rows: equal to generated rows, made only once, and checked for damage."""

import json
from pathlib import Path

import numpy as np
import pytest

from efficient_attention.data.arena.dataset_registry import open_arena_dataset
from efficient_attention.data.arena.row_cache import cached_rows, dataset_hash
from efficient_attention.data.tokenizers.fixed_vocabulary import FIRST_WORD
from efficient_attention.errors import InputError

SET = open_arena_dataset('passages:rows=5:length=32:source=stdlib', 'x')


def plain(rows) -> list:
    return [([text.tolist() for text in row.texts], row.label) for row in rows]


def test_rows_come_back_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = plain(row.to_arena_row() for row in cached_rows(SET, 'train', tmp_path, show_progress=False))
    assert made == plain(SET.rows('train'))
    monkeypatch.setattr(type(SET), 'rows', None)  # A second generation of the rows would fail.
    rows = list(cached_rows(SET, 'train', tmp_path))
    assert plain(row.to_arena_row() for row in rows) == made
    assert (rows[0].texts[0] == np.array(made[0][0][0]) + FIRST_WORD).all() and rows[0].texts[0].dtype == np.uint16
    [folder] = tmp_path.iterdir()
    manifest = json.loads((folder / 'manifest.json').read_text())
    assert manifest['counts'] == {'rows': 5, 'ids': 320} and manifest['split'] == 'train'
    (folder / 'ids.npy').write_bytes(b'x')
    with pytest.raises(InputError, match=r'ids\.npy: damaged, its bytes differ from the manifest; delete the folder'):
        cached_rows(SET, 'train', tmp_path)


def test_texts_stay_on_disk_until_they_are_read(tmp_path: Path):
    rows = list(cached_rows(SET, 'train', tmp_path, show_progress=False))
    assert all(isinstance(text.base, np.memmap) for row in rows for text in row.texts)
    [folder] = tmp_path.iterdir()
    np.testing.assert_array_equal(np.load(folder / 'ids.npy'), np.concatenate([t for row in rows for t in row.texts]))


def test_what_rows_are_names_their_folder():
    other = open_arena_dataset('passages:rows=5:length=33:source=stdlib', 'x')
    assert len({dataset_hash(SET, 'train'), dataset_hash(SET, 'dev'), dataset_hash(other, 'train')}) == 3


@pytest.mark.parametrize('field', ['examples.cache', 'data.cache'])
def test_a_cache_that_cannot_be_written_is_named_by_its_field(tmp_path: Path, field: str):
    (tmp_path / 'file').touch()
    with pytest.raises(InputError, match=rf'^{field}: .*file'):
        cached_rows(SET, 'train', tmp_path / 'file', field=field, show_progress=False)
