"""Writes a folder of the cache so that it appears complete or not at all, though processes are killed or race."""

import contextlib
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from efficient_attention.errors import InputError

TOKENIZER = 'tokenizer.json'
UNIGRAM_COUNTS = 'unigram_counts.npy'


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """An empty folder beside `folder` that gets its name when the block ends well, and goes when it does not.

    Where `folder` has appeared in the meantime, that one stays: a folder's name stands for its content. What killed
    processes on the same host left behind is removed first.

    Raises:
        InputError: the cache cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder.parent)
        partial = Path(tempfile.mkdtemp(prefix=f'{_PREFIX}{os.getpid()}-', dir=folder.parent))
    except OSError as error:
        raise InputError(f'data.cache {folder.parent}: cannot be written ({error.strerror})') from None
    try:
        yield partial
        partial.chmod(0o755)  # mkdtemp keeps others out; a cache may be shared
        for path in [*partial.rglob('*'), partial]:
            force_to_disk(path)
        _rename(partial, folder)
    except OSError as error:
        raise InputError(f'{partial}: cannot be written ({error.strerror})') from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def force_to_disk(path: Path) -> None:
    """Waits until a file's bytes, or a folder's names, would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_PREFIX = f'.partial-{platform.node()}-'


def _rename(partial: Path, folder: Path) -> None:
    try:
        partial.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        if not (folder / 'manifest.json').exists():  # else another process was faster, with the same content
            raise InputError(f'{folder}: incomplete; delete the folder to prepare the corpus again') from None
    force_to_disk(folder.parent)


def _remove_abandoned(cache: Path) -> None:
    for path in cache.glob(f'{_PREFIX}*'):
        process = path.name.removeprefix(_PREFIX).partition('-')[0]
        if process.isdigit() and not _is_alive(int(process)):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
