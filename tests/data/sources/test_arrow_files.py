"""Tests of Parquet and Arrow files: documents, labelled rows, folders that `datasets` saved, and damaged files."""

import json
import shutil
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from efficient_attention.config.examples import ExamplesConfig
from efficient_attention.data.examples.conll import read_sentences
from efficient_attention.data.sources.arrow_files import find_table_files, open_arrow_table
from efficient_attention.data.sources.tables import TableRow, read_tables
from efficient_attention.data.sources.text_source import open_source
from efficient_attention.errors import InputError

# The package `datasets` wrote these folders and files, see scripts/make_fixtures/saved_datasets.py.
SAVED = Path(__file__).parent / 'saved_datasets'
TEXTS = ['A grëat film.', 'Dull.', 'So slow!', 'A joy\nin two lines.', 'Fine.']
LABELS = ['good', 'bad', 'bad', 'good', 'good']


@pytest.mark.parametrize('source', [f'parquet:{SAVED}/reviews.parquet', f'arrow:{SAVED}/reviews/train'])
def test_documents(source: str):
    opened = open_source(f'{source}#text')
    assert list(opened.documents()) == list(opened.documents()) == TEXTS
    assert opened.digest() == open_source(f'{source}#text').digest() != open_source(f'{source}#body').digest()
    with pytest.raises(InputError, match="(parquet|arrow): no column 'body'; known: 'text', 'label', 'stars'"):
        list(open_source(f'{source}#body').documents())
    with pytest.raises(InputError, match="row 0: field 'label' is a whole number, not a text"):
        list(open_source(f'{source}#label').documents())
    with pytest.raises(InputError, match='the field is missing; write (parquet|arrow):<glob'):
        open_source(source)


@pytest.mark.parametrize('source', [f'{SAVED}/reviews.parquet', f'{SAVED}/reviews/train'])
def test_rows_have_named_classes(source: str):
    rows = list(read_tables(source))
    assert [row.column_text('text') for row in rows] == TEXTS
    assert [row.column_label('label') for row in rows] == LABELS
    assert [row.column_label('stars') for row in rows] == ['4.5', '1', '1.5', '5', '3']
    with pytest.raises(InputError, match="(parquet|arrow): row 0: no column 'body'; known: 'text', 'label', 'stars'"):
        rows[0].column_text('body')


def test_hidden_and_unknown_classes():
    [row] = read_tables(str(SAVED / 'reviews' / 'test'))
    assert row.column_label('label') is None
    with pytest.raises(InputError, match="x: row 0: field 'label' has class number 2, but there are only 2 classes"):
        TableRow('x', 'row 0', {'label': 2}, {'label': ['a', 'b']}).column_label('label')


def test_folders_of_several_splits_and_of_selected_rows(tmp_path: Path):
    with pytest.raises(
        InputError, match=r'reviews: it has several splits; name the folder of one: \S*/train, \S*/test$'
    ):
        find_table_files(str(SAVED / 'reviews'))
    assert [path.name for path in find_table_files(str(SAVED / 'reviews' / 'train'))] == [
        f'data-0000{number}-of-00002.arrow' for number in (0, 1)
    ]
    assert [row.column_text('text') for row in read_tables(str(SAVED / 'selected'))] == ['Fine.', 'A grëat film.']
    with pytest.raises(InputError, match='no file matches'):
        find_table_files(str(tmp_path))


@pytest.mark.parametrize(
    'state, fault',
    [
        ({'_data_files': [{'filename': '../x.arrow'}]}, "there is no file '../x.arrow' beside it"),
        ({'_data_files': [{'filename': 'gone.arrow'}]}, "there is no file 'gone.arrow' beside it"),
        ({'_data_files': [{}]}, "no field 'filename'"),
        ({}, "no field '_data_files'"),
        (
            {'_indices_data_files': [{'filename': 'i.arrow'}], '_data_files': []},
            'old version of datasets, with an indices',
        ),
        ([], 'not a JSON object'),
    ],
)
def test_a_bad_state_file(tmp_path: Path, state: object, fault: str):
    (tmp_path / 'state.json').write_text(json.dumps(state))
    with pytest.raises(InputError, match=fault) as caught:
        find_table_files(str(tmp_path))
    assert str(caught.value).startswith(str(tmp_path / 'state.json'))


def test_tagged_words():
    config = ExamplesConfig(train=str(SAVED / 'words'), text='tokens', label='ner_tags')
    assert [(one.words, one.tags) for one in read_sentences(config, 'train')] == [
        (('The', 'Po', 'flows'), ('O', 'B-LOC', 'O')),
        (('Through', 'Turin'), ('O', 'B-LOC')),
    ]


@pytest.mark.parametrize('suffix', ['parquet', 'arrow'])
def test_damaged_files(tmp_path: Path, suffix: str):
    path = tmp_path / f'x.{suffix}'
    for content in (b'', b'no table', b'PAR1PAR1', b'ARROW1 x'):
        path.write_bytes(content)
        with pytest.raises(InputError, match=f'^{path}: not a valid (Parquet|Arrow) file, or damaged') as caught:
            list(read_tables(str(path)))
        assert '\n' not in str(caught.value)
    source = SAVED / ('reviews.parquet' if suffix == 'parquet' else 'selected/data-00000-of-00001.arrow')
    content = source.read_bytes()
    for size in range(0, len(content) - 8, 97):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match=f'^{path}: '):
            assert list(read_tables(str(path))) == list(read_tables(str(source)))


def test_damaged_offsets_do_not_end_the_process(tmp_path: Path):
    """Arrow files have no checksums, so some damage changes the rows. Offsets beyond the data must not be followed."""
    path, content = tmp_path / 'x.arrow', (SAVED / 'selected' / 'data-00000-of-00001.arrow').read_bytes()
    refused = 0
    for position in range(len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x41]) + content[position + 1 :])
        try:
            list(read_tables(str(path)))
        except InputError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > len(content) / 3


def test_a_wrong_checksum_of_a_parquet_page_is_found(tmp_path: Path):
    path = tmp_path / 'x.parquet'
    table = pyarrow.table({'text': ['the first of all texts', 'another one']})
    plain = {'compression': 'none', 'use_dictionary': False, 'write_statistics': False}
    parquet.write_table(table, path, write_page_checksum=True, **plain)
    path.write_bytes(path.read_bytes().replace(b'first of all', b'first or all', 1))
    with pytest.raises(InputError, match=f'^{path}: .*damaged'):
        list(open_source(f'parquet:{path}#text').documents())


def test_texts_in_other_types(tmp_path: Path):
    texts = pyarrow.array(['ä', 'b', 'ä'])
    columns = {
        'bytes': texts.cast(pyarrow.binary()),
        'large': texts.cast(pyarrow.large_string()),
        'coded': texts.dictionary_encode(),
        'gaps': pyarrow.array(['a', None, 'c']),
    }
    table = pyarrow.table(columns)
    parquet.write_table(table, tmp_path / 'x.parquet')
    with pyarrow.OSFile(str(tmp_path / 'x.arrow'), 'wb') as file, pyarrow.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    shutil.copy(tmp_path / 'x.parquet', tmp_path / 'x.pq')
    for source in ('parquet:{}/x.parquet', 'parquet:{}/x.pq', 'arrow:{}/x.arrow'):
        for name in ('bytes', 'large', 'coded'):
            assert list(open_source(f'{source.format(tmp_path)}#{name}').documents()) == ['ä', 'b', 'ä']
        with pytest.raises(InputError, match="row 1: field 'gaps' is null, not a text"):
            list(open_source(f'{source.format(tmp_path)}#gaps').documents())
    assert [row.column_text('bytes') for row in read_tables(f'{tmp_path}/x.parquet')] == ['ä', 'b', 'ä']


def test_bad_text_and_bad_metadata(tmp_path: Path):
    invalid = pyarrow.StringArray.from_buffers(1, pyarrow.py_buffer(b'\0\0\0\0\1\0\0\0'), pyarrow.py_buffer(b'\xff'))
    parquet.write_table(pyarrow.table({'text': invalid}), tmp_path / 'x.parquet')
    with pytest.raises(InputError, match=f'^{tmp_path}/x.parquet: damaged .*UTF8'):
        list(open_source(f'parquet:{tmp_path}/x.parquet#text').documents())
    for text in (b'[', b'[]', b'{"info": {"features": {"a": {"_type": "ClassLabel"}}}}'):
        table = pyarrow.table({'text': ['a']}).replace_schema_metadata({b'huggingface': text})
        parquet.write_table(table, tmp_path / 'x.parquet')
        with pytest.raises(InputError, match="x.parquet: metadata 'huggingface': cannot be read"):
            open_arrow_table(tmp_path / 'x.parquet')
