"""Reads text documents from ArrayRecord files; error messages name the damaged file or record."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from array_record.python import array_record_module

from efficient_attention.data.preparation.cache_folder import one_line
from efficient_attention.data.sources.text_files import decode_utf8
from efficient_attention.errors import InputError

RECORDS_AT_ONCE = 256


def array_record_documents(files: Sequence[Path]) -> Iterator[str]:
    """Yields the records of ArrayRecord files; each record is the UTF-8 text of one document.

    Raises:
        InputError: a file is not ArrayRecord or is damaged, or a record is not UTF-8; names file and record.
    """
    for path in files:
        for number, record in enumerate(_records(path)):
            yield decode_utf8(record, f'{path}: record {number}')


def _records(path: Path) -> Iterator[bytes]:
    try:
        reader = array_record_module.ArrayRecordReader(str(path))
        count = reader.num_records()
        for start in range(0, count, RECORDS_AT_ONCE):
            yield from reader.read(start, min(start + RECORDS_AT_ONCE, count))
        reader.close()
    except (RuntimeError, IndexError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f'{path}: not a valid ArrayRecord file ({one_line(error)})') from None
