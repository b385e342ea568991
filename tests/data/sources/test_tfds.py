"""Tests of datasets that TFDS prepared: rows in both file formats, damaged files, and one line for what is missing."""

import shutil
import sys
from pathlib import Path

import pytest

from efficient_attention.data.sources.tables import read_table
from efficient_attention.data.sources.tfds import (
    PREPARED,
    digest_texts,
    parse_tfds_field,
    prepared_folder,
    tfds_documents,
    tfds_rows,
    tfds_values,
)
from efficient_attention.errors import InputError

# scripts/make_fixtures/tfds_sets.py lets TFDS write these folders.
FOLDER = Path(__file__).parent / 'prepared_tfds'
FORMATS = ('array_record', 'tfrecord')
NOTES = {'A grëat film.', 'Dull.', 'Good, then bad.', 'So slow!', 'A joy\nin two lines.'}


@pytest.fixture(params=FORMATS)
def notes(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a copy of the dataset film_notes, in each of the two file formats; TFDS_DATA_DIR leads to it."""
    shutil.copytree(FOLDER / request.param, tmp_path / 'sets')
    monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path / 'sets'))
    return tmp_path / 'sets' / 'film_notes' / '1.0.0'


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets TFDS_DATA_DIR lead to stand-ins of public datasets, which have the features of the public ones."""
    monkeypatch.setenv('TFDS_DATA_DIR', str(FOLDER / 'public'))


@pytest.mark.usefixtures('notes')
def test_rows_of_both_file_formats():
    assert set(tfds_documents('film_notes', 'train', 'note')) == NOTES
    assert len(list(tfds_documents('film_notes', 'test', ''))) == 2
    rows = tfds_rows('film_notes', 'train')
    assert len(rows) == 5 and rows[4]['note'] == list(rows)[4]['note']
    with pytest.raises(IndexError):
        rows[5]
    row = next(row for row in rows if row['note'] == b'Good, then bad.')
    assert (row['mood'], row['stars'], row['year'], row['tags']) == (0, 1, 1992, [b'film', b'film'])
    assert row['picture'].shape == (2, 3, 3) and row['picture'][0, 0].tolist() == [2, 3, 4]
    found = {row.values['note']: row.column_label('mood') for row in read_table('tfds:film_notes:train')}
    assert set(found) == NOTES and found['Dull.'] == 'good' and found['Good, then bad.'] == 'bad'
    assert 'tensorflow' not in sys.modules


@pytest.mark.usefixtures('notes')
def test_parts_of_a_split_join_to_the_split():
    everything = list(tfds_documents('film_notes', 'train', ''))
    parts = [list(tfds_documents('film_notes:1.*.*', split, '')) for split in ('train[:2]', 'train[2:]')]
    assert len(parts[0]) == 2 and [*parts[0], *parts[1]] == everything


@pytest.mark.usefixtures('notes')
def test_unknown_fields_and_splits():
    with pytest.raises(InputError, match="tfds:film_notes: no field 'body'; known: .*note"):
        list(tfds_documents('film_notes', 'train', 'body'))
    with pytest.raises(InputError, match="field 'year' is a whole number, not a text"):
        list(tfds_documents('film_notes', 'train', 'year'))
    with pytest.raises(InputError, match='^tfds:film_notes: .*validation') as caught:
        list(tfds_documents('film_notes', 'validation', 'note'))
    assert '\n' not in str(caught.value)


def test_a_flipped_bit_is_found(notes: Path):
    [path] = notes.glob('film_notes-train*')
    content = bytearray(path.read_bytes())
    used = [position for position, byte in enumerate(content) if byte]  # ArrayRecord pads its files with zeros.
    content[used[len(used) // 2]] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match='film_notes.*(record . has a wrong checksum|row . cannot be read)') as caught:
        list(tfds_documents('film_notes', 'train', 'note'))
    assert '\n' not in str(caught.value)


def test_missing_and_short_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copytree(FOLDER / 'public' / 'lm1b', tmp_path / 'lm1b')
    monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
    path = tmp_path / 'lm1b' / '1.1.0' / 'lm1b-train.tfrecord-00001-of-00002'
    path.write_bytes(b'')
    with pytest.raises(InputError, match=f'^{path}: 0 records; dataset_info.json beside it says [12]$'):
        list(tfds_values('lm1b', 'train', 'text'))
    path.unlink()
    with pytest.raises(InputError, match=f'^{path}: cannot be read'):
        list(tfds_values('lm1b', 'train', 'text'))
    (path.parent / 'dataset_info.json').unlink()
    with pytest.raises(InputError, match='^tfds:lm1b: .*dataset_info'):
        tfds_rows('lm1b', 'train')


@pytest.mark.usefixtures('public')
@pytest.mark.parametrize('name', ['lm1b', 'imdb_reviews', 'wikipedia', 'wikipedia/20230601.simple:1.0.0', 'glue/sst2'])
def test_the_text_of_public_sets_needs_no_field(name: str):
    assert len([text for text in tfds_documents(*parse_tfds_field(name)) if text.endswith('.')]) == 3


@pytest.mark.usefixtures('public')
def test_names_that_are_not_clear():
    with pytest.raises(
        InputError, match='^tfds:glue: name one of its prepared configs: glue/mnli, glue/sst2, glue/stsb'
    ):
        tfds_rows('glue', 'train')
    with pytest.raises(
        InputError, match='^tfds:glue/mnli: the field is missing; write .* hypothesis, idx, label, prem'
    ):
        list(tfds_documents('glue/mnli', 'train', ''))


def test_a_set_that_is_not_prepared_is_said_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ('squad/v1.1', 'imdb_reviews:2.0.0', 'glue/../x'):
        with pytest.raises(InputError) as caught:
            tfds_rows(name, 'train')
        expected = f'tfds:{name}: not prepared in {tmp_path} or {PREPARED}; prepare it once with: make tfds NAME={name}'
        assert str(caught.value) == expected or '..' in name
    (tmp_path / PREPARED).mkdir(parents=True)
    shutil.copytree(FOLDER / 'public' / 'lm1b', tmp_path / PREPARED / 'lm1b')
    assert prepared_folder('lm1b') == PREPARED / 'lm1b' / '1.1.0'


def test_the_newest_version_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for version in ('1.9.0', '1.10.0', '1.10.0.incomplete'):
        (tmp_path / 'x' / version).mkdir(parents=True)
        (tmp_path / 'x' / version / 'features.json').write_text('{}')
    monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
    assert prepared_folder('x').name == '1.10.0' and prepared_folder('x:1.9.*').name == '1.9.0'


@pytest.mark.usefixtures('public')
def test_a_missing_tfds_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, 'tensorflow_datasets', None)
    with pytest.raises(InputError, match=r"^tfds:lm1b needs: pip install 'efficient-attention\[tfds\]' \("):
        list(tfds_documents('lm1b', 'train', 'text'))


def test_the_digest_of_texts_depends_on_their_bounds_and_order():
    digests = {digest_texts(iter(texts)) for texts in (['a', 'b'], ['b', 'a'], ['ab'], ['ab', ''], [])}
    assert len(digests) == 5
    assert digest_texts(iter([b'a', b'b'])) == digest_texts(iter(['a', 'b']))
    assert digest_texts(iter(['a', 'b'])) == digest_texts(iter(['a', 'b']))
