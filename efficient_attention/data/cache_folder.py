"""Writes a folder of the cache so that it appears complete or not at all, though processes are killed or race."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from efficient_attention.errors import InputError, RunError
from efficient_attention.whole_files import FAULTS, whole_folder

TOKENIZER = 'tokenizer.json'
TARGET_TOKENIZER = 'target_tokenizer.json'  # of a workdir whose targets have one of their own
UNIGRAM_COUNTS = 'unigram_counts.npy'


@contextlib.contextmanager
def new_folder(folder: Path, field: str = 'data.cache') -> Iterator[Path]:
    """`whole_folder` for a folder whose name stands for its content: where it has appeared meanwhile, that one stays.

    Args:
        folder: what will be there.
        field: of the config, which an error names where the folder cannot be written.

    Raises:
        RunError, InputError: the folder cannot be written, or another file that is used in the block fails.
        InputError: an incomplete folder of this name is there.
    """
    is_complete = False
    try:
        with whole_folder(folder) as partial:
            yield partial
            partial.chmod(0o755)  # a cache may be shared
            is_complete = True
    except InputError as error:
        if not (is_complete and folder.is_dir()):
            if str(error).startswith(f'{folder}: '):
                raise InputError(f'{field}: {error}') from None
            raise
        if not (folder / 'manifest.json').exists():  # else another process was faster, with the same content
            raise InputError(f'{folder}: incomplete; delete the folder to prepare the corpus again') from None
    except OSError as error:  # of another file
        kind = RunError if error.errno in FAULTS else InputError
        raise kind(f'{error.filename}: {error.strerror}') from error
