"""Rows of data sets as documents, and the line or record that is at fault."""

import gzip
import json
import sys
import types

import pytest
from array_record.python import array_record_module

from efficient_attention.data.record_files import (
    digest_texts,
    json_documents,
    record_documents,
    tfds_documents,
    tfds_values,
)
from efficient_attention.errors import InputError


def test_json_rows_plain_and_packed(tmp_path):
    lines = '\n'.join(json.dumps({'id': i, 'text': f'tëxt {i}\nsecond line'}) for i in range(3)) + '\n\n'
    (tmp_path / 'a.jsonl').write_text(lines)
    (tmp_path / 'b.jsonl.gz').write_bytes(gzip.compress(lines.encode()))
    expected = [f'tëxt {i}\nsecond line' for i in range(3)]
    assert list(json_documents([tmp_path / 'a.jsonl', tmp_path / 'b.jsonl.gz'], 'text')) == expected * 2


@pytest.mark.parametrize(
    'line, fault',
    [
        ('{"text": "x"', 'not JSON'),
        ('[' * 100_000, 'not JSON'),
        ('["text"]', 'not a JSON object'),
        ('{"title": "x", "body": 1}', "no field 'text'; known: title, body"),
        ('{"text": 5}', "field 'text' is int, not text"),
        ('{"text": null}', "field 'text' is NoneType, not text"),
        (r'{"text": "half \ud83d"}', 'half of a surrogate pair'),
    ],
)
def test_a_bad_json_row_is_named_by_file_and_line(tmp_path, line, fault):
    path = tmp_path / 'rows.jsonl'
    path.write_text('{"text": "good"}\n\n' + line + '\n')
    with pytest.raises(InputError) as caught:
        list(json_documents([path], 'text'))
    message = str(caught.value)
    assert f'{path}: line 3: ' in message and fault in message and '\n' not in message


def write_records(path, records, options='group_size:1'):
    writer = array_record_module.ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()


@pytest.mark.parametrize('options', ['group_size:1', 'group_size:64'])
def test_array_records(tmp_path, options):
    texts = [f'dökument {i}' for i in range(600)]
    write_records(tmp_path / 'a', [text.encode() for text in texts], options)
    write_records(tmp_path / 'b', [b'last'])
    assert list(record_documents([tmp_path / 'a', tmp_path / 'b'])) == [*texts, 'last']


def test_a_record_that_is_not_utf_8_is_named(tmp_path):
    write_records(tmp_path / 'a', [b'good', b'bad \xfe'])
    with pytest.raises(InputError, match='a: record 1: byte 0xfe at offset 4 is not UTF-8'):
        list(record_documents([tmp_path / 'a']))


def test_a_file_that_is_no_array_record_is_named(tmp_path):
    write_records(tmp_path / 'cut', [b'x' * 1000] * 100)
    (tmp_path / 'cut').write_bytes((tmp_path / 'cut').read_bytes()[:-70_000])
    (tmp_path / 'text').write_text('no records here')
    for name in ['cut', 'text']:
        with pytest.raises(InputError, match=f'{name}: not a sound ArrayRecord file') as caught:
            list(record_documents([tmp_path / name]))
        assert '\n' not in str(caught.value)


@pytest.fixture
def fake_tfds(monkeypatch):
    """A stand-in for the optional package; its data sets are lists of rows."""
    sets = {('reviews', 'train'): [{'text': 'grëat'.encode(), 'label': 1}, {'text': 'bad', 'label': 0}]}

    def data_source(name, *, split):
        return sets[name, split]

    monkeypatch.setitem(sys.modules, 'tensorflow_datasets', types.SimpleNamespace(data_source=data_source))


@pytest.mark.usefixtures('fake_tfds')
def test_tfds_rows():
    assert list(tfds_documents('reviews', 'train', 'text')) == ['grëat', 'bad']
    with pytest.raises(InputError, match="tfds:reviews: no field 'body'; known: text, label"):
        list(tfds_documents('reviews', 'train', 'body'))
    with pytest.raises(InputError, match="field 'label' is int, not text"):
        list(tfds_documents('reviews', 'train', 'label'))
    with pytest.raises(InputError, match='tfds:nothing: KeyError'):
        list(tfds_documents('nothing', 'train', 'text'))
    assert list(tfds_values('reviews', 'train', 'label')) == [1, 0]


def test_a_missing_tfds_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, 'tensorflow_datasets', None)
    with pytest.raises(InputError, match='tfds:reviews needs the package tensorflow_datasets'):
        list(tfds_documents('reviews', 'train', 'text'))


def test_the_digest_of_texts_depends_on_their_bounds_and_order():
    digests = {digest_texts(iter(texts)) for texts in (['a', 'b'], ['b', 'a'], ['ab'], ['ab', ''], [])}
    assert len(digests) == 5
    assert digest_texts(iter([b'a', b'b'])) == digest_texts(iter(['a', 'b']))
    assert digest_texts(iter(['a', 'b'])) == digest_texts(iter(['a', 'b']))
