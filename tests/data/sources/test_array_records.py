"""Tests that the records of ArrayRecord files are read as documents, and that a bad record is named."""

import pytest
from array_record.python import array_record_module

from efficient_attention.data.sources.array_records import array_record_documents
from efficient_attention.errors import InputError


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
    assert list(array_record_documents([tmp_path / 'a', tmp_path / 'b'])) == [*texts, 'last']


def test_a_record_that_is_not_utf_8_is_named(tmp_path):
    write_records(tmp_path / 'a', [b'good', b'bad \xfe'])
    with pytest.raises(InputError, match='a: record 1: byte 0xfe at offset 4 is not UTF-8'):
        list(array_record_documents([tmp_path / 'a']))


def test_a_file_that_is_no_array_record_is_named(tmp_path):
    write_records(tmp_path / 'cut', [b'x' * 1000] * 100)
    (tmp_path / 'cut').write_bytes((tmp_path / 'cut').read_bytes()[:-70_000])
    (tmp_path / 'text').write_text('no records here')
    for name in ['cut', 'text']:
        with pytest.raises(InputError, match=f'{name}: not a valid ArrayRecord file') as caught:
            list(array_record_documents([tmp_path / name]))
        assert '\n' not in str(caught.value)
