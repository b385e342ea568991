"""Writes files and folders atomically: they appear complete or not at all, even if the process is killed meanwhile.

Each file or folder is written under a temporary name in the same folder, flushed to disk and renamed. The next process
that writes in this folder removes temporary files of killed processes of the same host.

A failed write raises an error with a one-line message: a RunError if the disk fails or is full, an InputError if the
path cannot be used, such as a folder without write permission.
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

# Error numbers that mean a fault of the disk, not a wrong path.
FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
PARTIAL = '.partial-*'  # glob pattern for the unfinished files of all hosts
PREFIX = f'.partial-{platform.node()}-'


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file atomically by a file with the given text in UTF-8; a concurrent reader sees either the old or the
    new content.

    Raises:
        RunError, InputError: the file cannot be written; the message names it. The old file is then unchanged.
    """
    with atomic_file(path) as partial:
        partial.write_text(text, encoding='utf-8')


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path in the same folder; renames the file to its final path if the `with` block succeeds, and
    removes it if the block fails.

    Creates the parent folder if it is missing.

    Raises:
        RunError, InputError: as `write_atomically`.
    """
    partial = temporary_path(path)
    with _one_line_os_errors(path, partial):
        try:
            _make_parent(path)
            yield partial
            # Without this flush, a power cut after the rename may leave an empty file under the final name.
            flush(partial)
            partial.replace(path)
            flush(path.parent)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()


@contextlib.contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yields an empty temporary folder; renames it to its final path if the `with` block succeeds, and removes it if
    the block fails.

    If `folder` exists and is empty, it is replaced; if it has content, it is left unchanged.

    Raises:
        RunError, InputError: the folder cannot be written, or has content; the message names it.
    """
    partial = temporary_path(folder)
    with _one_line_os_errors(folder, partial):
        try:
            _make_parent(folder)
            partial.mkdir()
            yield partial
            flush_folder_to_disk(partial)
            partial.rename(folder)
            flush(folder.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def temporary_path(path: Path) -> Path:
    """Returns an unused temporary path in the same folder; its name contains the process id."""
    return path.with_name(f'{PREFIX}{os.getpid()}-{secrets.token_hex(4)}')


def remove_stale_temporaries(folder: Path) -> None:
    """Removes unfinished files in a folder that dead processes of this host have left behind."""
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
        raise write_failed_error(path, error) from None
    remove_stale_temporaries(path.parent)


def flush_folder_to_disk(folder: Path) -> None:
    """Waits until all files in a folder, and their names, are flushed to disk (fsync)."""
    for path in [*folder.rglob('*'), folder]:
        flush(path)


def flush(path: Path) -> None:
    """Flushes a file's content, or a folder's file names, to disk (fsync), so that they survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_failed_error(path: Path, error: OSError) -> RunError | InputError:
    """Returns a one-line error which says that a file or folder could not be written: RunError for disk faults, else
    InputError."""
    # NumPy raises errors without errno for an incomplete write.
    kind = RunError if error.errno in (None, *FAULTS) else InputError
    return kind(f'{path}: cannot be written ({error.strerror or error})')


@contextlib.contextmanager
def _one_line_os_errors(path: Path, partial: Path) -> Iterator[None]:
    """Turns an OSError from writing `path` into a one-line error; does not change an OSError that concerns another
    file."""
    try:
        yield
    except OSError as error:
        names = [str(name) for name in (error.filename, error.filename2) if name is not None]
        if names and not any(name == str(path) or name.startswith(str(partial)) for name in names):
            raise  # The error concerns another file, which the `with` block was reading.
        raise write_failed_error(path, error) from None


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
