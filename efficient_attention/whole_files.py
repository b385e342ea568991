"""Writes files and folders that appear whole or not at all, though a process fails or is killed while it writes.

Each is written beside its place under another name, flushed to disk and renamed. What killed processes of the same host
left behind is removed by the next one that writes in the same place.

What cannot be written is one line: a RunError where the disk fails or is full, an InputError where the place does not
serve, such as a folder that the user may not write into.
"""

import contextlib
import errno
import os
import platform
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from efficient_attention.errors import InputError, RunError

FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)  # of the disk, whatever the path is
PARTIAL = '.partial-*'  # what is not whole yet, of any host
PREFIX = f'.partial-{platform.node()}-'


def write_atomically(path: Path, text: str) -> None:
    """Replaces the file at once by one with `text`, in UTF-8: whoever reads it has the old or the new one.

    Raises:
        RunError, InputError: it cannot be written; names it. The old file is then as it was.
    """
    with whole_file(path) as partial:
        partial.write_text(text, encoding='utf-8')


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path beside `path` at which to write a file. It gets its name when the block ends well, and goes if it fails.

    The folder that it is in is made where it is missing.

    Raises:
        RunError, InputError: as `write_atomically`.
    """
    partial = partial_path(path)
    with _one_line(path, partial):
        try:
            _make_parent(path)
            yield partial
            flush(partial)  # else a power cut after the rename may leave the name with no content
            partial.replace(path)
            flush(path.parent)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """An empty folder beside `folder`. It gets its name when the block ends well, and goes if it fails.

    An empty folder of that name gives way; one with something in it stays as it is.

    Raises:
        RunError, InputError: the folder cannot be written, or there is something in it; names it.
    """
    partial = partial_path(folder)
    with _one_line(folder, partial):
        try:
            _make_parent(folder)
            partial.mkdir()
            yield partial
            flush_all(partial)
            partial.rename(folder)
            flush(folder.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def partial_path(path: Path) -> Path:
    """A new name beside `path` that says which process uses it."""
    return path.with_name(f'{PREFIX}{os.getpid()}-{secrets.token_hex(4)}')


def remove_abandoned(folder: Path) -> None:
    """Removes what processes of this host that are no longer there left unfinished in a folder."""
    for path in folder.glob(f'{PREFIX}*'):
        process = path.name.removeprefix(PREFIX).partition('-')[0]
        if process.isdigit() and not _is_alive(int(process)):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _make_parent(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_be_written(path, error) from None
    remove_abandoned(path.parent)


def flush_all(folder: Path) -> None:
    """Waits until every file and name in a folder is on disk."""
    for path in [*folder.rglob('*'), folder]:
        flush(path)


def flush(path: Path) -> None:
    """Waits until a file's bytes, or a folder's names, would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_be_written(path: Path, error: OSError) -> RunError | InputError:
    """The line for what kept a file or folder from being written."""
    kind = RunError if error.errno in (None, *FAULTS) else InputError  # None: NumPy's, of a write that was cut short
    return kind(f'{path}: cannot be written ({error.strerror or error})')


@contextlib.contextmanager
def _one_line(path: Path, partial: Path) -> Iterator[None]:
    """Makes one line of an OSError that names no file, or one that is being written at `partial` for `path`."""
    try:
        yield
    except OSError as error:
        names = [str(name) for name in (error.filename, error.filename2) if name is not None]
        if names and not any(name == str(path) or name.startswith(str(partial)) for name in names):
            raise  # of a file that is read meanwhile
        raise cannot_be_written(path, error) from None


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
