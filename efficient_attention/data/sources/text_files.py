"""Finds and reads source files (globs, gzip, bzip2, UTF-8); every error message names the file and the position in
it."""

import bz2
import functools
import glob
import gzip
import hashlib
import itertools
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from efficient_attention.errors import InputError

MOST_BYTES = 2**31  # maximum number of bytes of a file that is read as one text
MOST_OF_A_LINE = 2**28  # maximum number of bytes of a line; the corpus text8 is one line of 10^8 bytes
PIECE = 2**20  # bytes read at a time, so that the limits apply before a whole line or file is in memory
# A packed file may unpack to ROOM bytes or to MOST_RATIO times its size, whichever is more.
# Compression shrinks text to a third or a tenth, and very repetitive text to a fiftieth.
# Gigabytes of one letter shrink to a thousandth; such a file is refused.
ROOM, MOST_RATIO = 2**26, 100
Read = TypeVar('Read')
# suffix -> function that opens such a packed file
PACKED: dict[str, Callable[[Path], Any]] = {'.gz': gzip.open, '.bz2': bz2.open}


def find_files(patterns: str) -> tuple[Path, ...]:
    """Returns the files that match any of the comma-separated globs, without repeats, sorted by path.

    `**` crosses folders and `~` is the home folder. Write `?` for a comma inside a path.

    Raises:
        InputError: a glob matches no file.
    """
    found: set[str] = set()
    for pattern in (os.path.expanduser(part.strip()) for part in patterns.split(',')):
        names = [pattern] if os.path.isfile(pattern) else glob.glob(pattern, recursive=True)
        files = {os.path.normpath(name) for name in names if os.path.isfile(name)}
        if not files:
            raise InputError(f'no file matches {pattern!r}')
        found |= files
    return tuple(Path(name) for name in sorted(found))


def digest_files(paths: Sequence[Path]) -> str:
    """Returns a SHA-256 over the bytes and suffixes of files in order; it does not depend on file names, so folders may
    be moved."""
    total = hashlib.sha256()
    for path in paths:
        with _open_decompressed(path, unpack=False) as file:
            content = _read_or_input_error(path, functools.partial(hashlib.file_digest, file, 'sha256')).hexdigest()
        # The suffix is in the hash, because it decides how the file is read.
        total.update(f'{"".join(path.suffixes[-2:])} {content}\n'.encode())
    return total.hexdigest()


def read_text(path: Path) -> str:
    """Returns a file's text, which is UTF-8 with or without byte order mark; unpacks files whose name ends in .gz or
    .bz2.

    Raises:
        InputError: the file cannot be read, or is not UTF-8; the message names the byte.
    """
    with _open_decompressed(path) as file:
        data = b''.join(_read_limited_chunks(path, file.read, MOST_BYTES, 'one text'))
    return decode_utf8(data, str(path)).replace('\r\n', '\n')


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line without its line break) for each line of a UTF-8 file; raises InputError as
    `read_text`."""
    offset = 0
    with _open_decompressed(path) as file:
        for number in itertools.count(1):
            line = b''.join(_read_limited_chunks(path, file.readline, MOST_OF_A_LINE, f'line {number}', end=b'\n'))
            if not line:
                return
            yield number, decode_utf8(line, str(path), offset).rstrip('\r\n')
            offset += len(line)


def read_chunks(path: Path, size: int = 2**20) -> Iterator[bytes]:
    """Yields the bytes of a file, at most `size` at a time; unpacks and raises errors as `read_text`."""
    with _open_decompressed(path) as file:
        yield from iter(lambda: _read_or_input_error(path, lambda: file.read(size)), b'')


def decode_utf8(data: bytes, where: str, offset: int = 0) -> str:
    """Decodes UTF-8 bytes to text; at offset 0, drops a byte order mark.

    Args:
        data: bytes that start `offset` bytes into `where`.
        where: name of the file, for the message.
        offset: bytes before `data`.

    Raises:
        InputError: bytes that are not UTF-8; the message has the first one's offset in the (unpacked) file.
    """
    try:
        text = data.decode('utf-8')
    except UnicodeDecodeError as error:
        position = offset + error.start
        byte = data[error.start]
        raise InputError(f'{where}: byte 0x{byte:02x} at offset {position} is not UTF-8 ({error.reason})') from None
    return text.removeprefix('\ufeff') if offset == 0 else text


def _open_decompressed(path: Path, *, unpack: bool = True) -> Any:  # a binary file
    try:
        return _SizeLimitedReader(path) if unpack and path.suffix in PACKED else path.open('rb')
    except OSError as error:
        raise InputError(f'{path}: cannot be read ({error.strerror})') from None


class _SizeLimitedReader:
    """A packed file (.gz, .bz2) that raises InputError if more bytes are read than its size makes plausible."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, PACKED[path.suffix](path)
        self._most, self._read = max(ROOM, MOST_RATIO * path.stat().st_size), 0

    def read(self, size: int) -> bytes:
        """Returns the next unpacked bytes; raises InputError if the file unpacks to too many bytes for its size."""
        return self._check_decompressed_size(self._file.read(size))

    def readline(self, size: int) -> bytes:
        """Returns the next unpacked bytes up to the end of a line; raises InputError as `read`."""
        return self._check_decompressed_size(self._file.readline(size))

    def _check_decompressed_size(self, data: bytes) -> bytes:
        self._read += len(data)
        if self._read > self._most:
            raise InputError(
                f'{self._path}: unpacks to more than {self._most:,} bytes, far more than a text of its size; '
                'unpack it first if that is meant'
            )
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        del error
        self._file.close()


def _read_limited_chunks(
    path: Path, read: Callable[[int], bytes], most: int, what: str, *, end: bytes = b''
) -> Iterator[bytes]:
    """Yields a whole file, or one line that ends with `end`, in pieces; raises InputError if it has more than `most`
    bytes."""
    size, piece = 0, b''
    while not (end and piece.endswith(end)) and (piece := _read_or_input_error(path, functools.partial(read, PIECE))):
        size += len(piece)
        if size > most:
            raise InputError(f'{path}: {what} has more than {most:,} bytes')
        yield piece


def _read_or_input_error(path: Path, read: Callable[[], Read]) -> Read:
    try:
        return read()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f'{path}: cannot be read ({error})') from None
