"""Tests that a folder which differs from its manifest is refused in one line with the remedy."""

import json

import pytest

from efficient_attention.data.preparation.cache_folder import (
    MANIFEST,
    check_file_checksums,
    file_sizes_and_checksums,
    json_sha256,
    manifest_checksum,
    one_line,
    read_manifest,
)
from efficient_attention.errors import InputError


def write(folder, **fields):
    (folder / 'part').mkdir()
    (folder / 'part' / 'a.bin').write_bytes(b'abc')
    manifest = {'format': 3, 'files': file_sizes_and_checksums(folder)} | fields
    (folder / MANIFEST).write_text(json.dumps(manifest | {'checksum': manifest_checksum(manifest)}))
    return manifest


def test_a_manifest_comes_back(tmp_path):
    manifest = write(tmp_path, name='x')
    read = read_manifest(tmp_path, 3, 'text')
    assert {name: value for name, value in read.items() if name != 'checksum'} == manifest
    assert list(manifest['files']) == ['part/a.bin'] and manifest['files']['part/a.bin']['bytes'] == 3
    check_file_checksums(tmp_path, read, 'text')


def test_another_format_or_checksum_is_refused(tmp_path):
    manifest = write(tmp_path)
    advice = f'delete the folder {tmp_path} to prepare the text again'
    with pytest.raises(InputError) as caught:
        read_manifest(tmp_path, 4, 'text')
    assert str(caught.value) == f'{tmp_path / MANIFEST}: format 3, this version reads 4; {advice}'
    (tmp_path / MANIFEST).write_text(json.dumps(manifest | {'checksum': 'x'}))
    with pytest.raises(InputError, match=f'damaged, its checksum differs; {advice}'):
        read_manifest(tmp_path, 3, 'text')
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(InputError, match='no prepared text there'):
        read_manifest(tmp_path, 3, 'text')


@pytest.mark.parametrize('data, fault', [(b'abd', 'damaged'), (b'ab', 'damaged'), (None, 'missing')])
def test_a_file_that_differs_is_named(tmp_path, data, fault):
    manifest = write(tmp_path)
    path = tmp_path / 'part' / 'a.bin'
    path.unlink() if data is None else path.write_bytes(data)
    with pytest.raises(InputError, match=f'{path}: {fault}.*; delete the folder {tmp_path} to prepare the corpus'):
        check_file_checksums(tmp_path, manifest, 'corpus')


def test_hashes_do_not_depend_on_the_order_of_names():
    assert json_sha256({'a': 1, 'b': (2,)}) == json_sha256({'b': [2], 'a': 1}) != json_sha256({'a': 1})
    assert manifest_checksum({'a': 1, 'checksum': 'x'}) == manifest_checksum({'a': 1})


def test_an_error_in_one_line():
    assert one_line(ValueError('a\n  b')) == 'a b'
