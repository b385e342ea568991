"""Reads records of TFRecord files by their number, without TensorFlow, and checks every checksum.

A record of n bytes is stored in little-endian as: n (uint64), checksum of n (uint32), the bytes, checksum of the bytes
(uint32). The checksum is a CRC-32C, rotated right by 15 bits, plus a constant.
"""

import array
import functools
import os
import struct
import threading
from pathlib import Path

import google_crc32c

from efficient_attention.errors import InputError

LENGTH_AND_CHECKSUM = struct.Struct('<QI')
CHECKSUM = struct.Struct('<I')
OVERHEAD = LENGTH_AND_CHECKSUM.size + CHECKSUM.size  # bytes of a record in the file besides its content


class TFRecordFile:
    """A TFRecord file as a sequence of records.

    The first access reads the header of every record. After that, the object keeps 8 bytes per record in memory.
    Several threads may read at the same time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> bytes:
        """Returns record `number`; raises InputError with file and record if the record is damaged."""
        if not 0 <= number < len(self):
            raise IndexError(number)
        start, end = self._offsets[number : number + 2]
        content = self._read(start + LENGTH_AND_CHECKSUM.size, end - start - LENGTH_AND_CHECKSUM.size)
        data = content[: -CHECKSUM.size]
        if CHECKSUM.unpack(content[-CHECKSUM.size :])[0] != masked_crc32c(data):
            raise InputError(f'{self.path}: record {number} has a wrong checksum (CRC-32C); the file is damaged')
        return data

    @property
    def _offsets(self) -> 'array.array[int]':
        with self._lock:
            return self._index

    @functools.cached_property
    def _index(self) -> 'array.array[int]':
        """The offset of every record, and the size of the file [records + 1], in bytes."""
        offsets, start = array.array('Q'), 0
        try:
            with self.path.open('rb') as file:
                size = os.fstat(file.fileno()).st_size
                while start < size:
                    where = f'{self.path}: record {len(offsets)}'
                    offsets.append(start)
                    start += OVERHEAD + _record_length(file.read(LENGTH_AND_CHECKSUM.size), where)
                    if start > size:
                        raise InputError(f'{where}: the file ends before the record does')
                    file.seek(start)
        except OSError as error:
            raise InputError(f'{self.path}: cannot be read ({error.strerror})') from None
        offsets.append(size)
        return offsets

    def _read(self, start: int, size: int) -> bytes:
        try:
            with self.path.open('rb') as file:
                file.seek(start)
                data = file.read(size)
        except OSError as error:
            raise InputError(f'{self.path}: cannot be read ({error.strerror})') from None
        if len(data) < size:
            raise InputError(f'{self.path}: the file became shorter while it was read')
        return data


def masked_crc32c(data: bytes) -> int:
    """Returns the checksum that TFRecord files store for `data`."""
    checksum = google_crc32c.value(data)
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _record_length(header: bytes, where: str) -> int:
    if len(header) < LENGTH_AND_CHECKSUM.size:
        raise InputError(f'{where}: the file ends inside the length of the record')
    length, checksum = LENGTH_AND_CHECKSUM.unpack(header)
    if checksum != masked_crc32c(header[:8]):
        raise InputError(f'{where} has a wrong checksum of its length; the file is damaged, or no TFRecord')
    return length
