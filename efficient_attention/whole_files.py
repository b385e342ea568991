"""Writes files and folders that appear whole or not at all, though a process fails or is killed while it writes.

Each is written beside its place under another name, flushed to disk and renamed. What killed processes of the same host
left behind is removed by the next one that writes in the same place.
"""

import contextlib
import os
import platform
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

PREFIX = f'.partial-{platform.node()}-'


def write_atomically(path: Path, text: str) -> None:
    """Replaces the file at once by one with `text`, in UTF-8: whoever reads it has the old or the new one.

    Raises:
        OSError: it cannot be written, with the path as its `filename`; the old file is then as it was.
    """
    with whole_file(path) as partial:
        partial.write_text(text, encoding='utf-8')


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path beside `path` at which to write a file. It gets its name when the block ends well, and goes if it fails.

    Raises:
        OSError: as `write_atomically`.
    """
    partial = partial_path(path)
    with naming(path, partial):
        try:
            remove_abandoned(path.parent)
            yield partial
            flush(partial)  # else a power cut after the rename may leave the name with no content
            partial.replace(path)
            flush(path.parent)
        finally:
            partial.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """An empty folder beside `folder`. It gets its name when the block ends well, and goes if it fails.

    An empty folder of that name gives way; one with something in it stays as it is.

    Raises:
        OSError: the folder cannot be written, or there is something in it; has the path as its `filename`.
    """
    partial = partial_path(folder)
    with naming(folder, partial):
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            remove_abandoned(folder.parent)
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


@contextlib.contextmanager
def naming(path: Path, partial: Path) -> Iterator[None]:
    """Gives an OSError that names no file, or one that is being written under another name, the name of the result."""
    try:
        yield
    except OSError as error:
        if error.filename is None or str(error.filename).startswith(str(partial)):
            error.filename, error.filename2 = str(path), None
        raise


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
