"""Writes a folder of the cache so that it appears complete or not at all, though processes are killed or race."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from efficient_attention.errors import InputError
from efficient_attention.whole_files import flush, flush_all, partial_path, remove_abandoned

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
    partial = partial_path(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(folder.parent)
        partial.mkdir()
    except OSError as error:
        raise InputError(f'data.cache {folder.parent}: cannot be written ({error.strerror})') from None
    try:
        yield partial
        partial.chmod(0o755)  # a cache may be shared
        flush_all(partial)
        _rename(partial, folder)
    except OSError as error:
        raise InputError(f'{partial}: cannot be written ({error.strerror})') from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _rename(partial: Path, folder: Path) -> None:
    try:
        partial.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        if not (folder / 'manifest.json').exists():  # else another process was faster, with the same content
            raise InputError(f'{folder}: incomplete; delete the folder to prepare the corpus again') from None
    flush(folder.parent)
