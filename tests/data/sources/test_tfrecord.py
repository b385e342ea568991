"""Tests of TFRecord files that TensorFlow wrote: random access, threads; every flipped byte and every cut is found."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from efficient_attention.data.sources.tfrecord import OVERHEAD, TFRecordFile
from efficient_attention.errors import InputError

# TensorFlow wrote this file, see scripts/make_fixtures/tfds_sets.py.
WRITTEN = Path(__file__).parent / 'prepared_tfds' / 'public' / 'lm1b' / '1.1.0' / 'lm1b-train.tfrecord-00000-of-00002'


@pytest.fixture
def joined(tmp_path: Path) -> Path:
    """Returns a file with both files of the split: TFRecord files can be joined as they are."""
    second = WRITTEN.with_name(WRITTEN.name.replace('00000-of', '00001-of'))
    (tmp_path / 'joined').write_bytes(WRITTEN.read_bytes() + second.read_bytes())
    return tmp_path / 'joined'


def test_records_are_found_by_number(joined: Path):
    file = TFRecordFile(joined)
    records = [file[number] for number in range(len(file))]
    assert len(records) == 3 and all(b'text' in record for record in records)
    assert sum(OVERHEAD + len(record) for record in records) == joined.stat().st_size
    assert [file[2], file[0]] == [records[2], records[0]]
    for number in (-1, 3):
        with pytest.raises(IndexError):
            file[number]


def test_a_file_without_records(tmp_path: Path):
    (tmp_path / 'none').write_bytes(b'')
    assert not len(TFRecordFile(tmp_path / 'none'))


def test_every_flipped_byte_is_found(joined: Path, tmp_path: Path):
    content = joined.read_bytes()
    file = TFRecordFile(joined)
    ends = [sum(OVERHEAD + len(file[before]) for before in range(number + 1)) for number in range(3)]
    for position in range(len(content)):
        damaged = tmp_path / f'{position}'
        damaged.write_bytes(content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :])
        record = next(number for number in range(3) if position < ends[number])
        with pytest.raises(InputError, match=f'^{damaged}: record {record} has a wrong checksum'):
            read_all(damaged)
        damaged.unlink()


def test_every_cut_is_found(joined: Path, tmp_path: Path):
    content, complete = joined.read_bytes(), 0
    for size in range(len(content)):
        cut = tmp_path / 'cut'
        cut.write_bytes(content[:size])
        try:
            complete += len(read_all(cut)) > 0
        except InputError as error:
            assert f'{cut}: record ' in str(error) and 'the file ends' in str(error)
    assert complete == 2  # A cut after the first or second record leaves a shorter file, which is valid.


def read_all(path: Path) -> list[bytes]:
    """Returns all records of a file."""
    file = TFRecordFile(path)
    return [file[number] for number in range(len(file))]


def test_a_missing_file(tmp_path: Path):
    with pytest.raises(InputError, match='gone: cannot be read'):
        len(TFRecordFile(tmp_path / 'gone'))


def test_threads_read_at_the_same_time(joined: Path):
    expected, file = read_all(joined), TFRecordFile(joined)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda turn: file[turn % 3], range(300)))
    assert found == expected * 100
