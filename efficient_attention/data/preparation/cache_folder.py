"""Writes the folders of the data cache, and verifies their checksums when they are opened.

A folder appears complete or not at all, even if processes are killed or race. Its manifest has checksums of itself and
of every other file.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from efficient_attention.atomic_files import FAULTS, atomic_folder
from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.errors import InputError, RunError

MANIFEST = 'manifest.json'
TOKENIZER = 'tokenizer.json'
# file of the target tokenizer in a workdir, if sources and targets have separate tokenizers
TARGET_TOKENIZER = 'target_tokenizer.json'
UNIGRAM_COUNTS = 'unigram_counts.npy'


@contextlib.contextmanager
def new_cache_folder(folder: Path, field: str = 'data.cache') -> Iterator[Path]:
    """Yields a temporary folder, which becomes the cache folder when the `with` block ends. If another process has
    created the cache folder meanwhile, that folder is kept.

    Args:
        folder: the new folder; its name must identify its content.
        field: the config field that an error names if the folder cannot be written.

    Raises:
        RunError, InputError: the folder cannot be written, or another file that is used in the block fails.
        InputError: an incomplete folder of this name exists.
    """
    is_complete = False
    try:
        with atomic_folder(folder) as partial:
            yield partial
            partial.chmod(0o755)  # Other users may share the cache.
            is_complete = True
    except InputError as error:
        if not (is_complete and folder.is_dir()):
            if str(error).startswith(f'{folder}: '):
                raise InputError(f'{field}: {error}') from None
            raise
        # If the folder has a manifest, another process has written the same content first.
        if not (folder / MANIFEST).exists():
            raise InputError(f'{folder}: incomplete; delete the folder to prepare the corpus again') from None
    except OSError as error:  # The error concerns another file, which the `with` block uses.
        kind = RunError if error.errno in FAULTS else InputError
        raise kind(f'{error.filename}: {error.strerror}') from error


def read_manifest(folder: Path, version: int, content: str) -> dict[str, Any]:
    """Returns the manifest of a prepared folder, after it has verified the manifest's own checksum.

    Args:
        folder: the prepared folder.
        version: the folder format that the caller reads.
        content: 'corpus' or 'text', for messages.

    Raises:
        InputError: the manifest is missing, damaged or of another format; the message names the file and the remedy.
    """
    path = folder / MANIFEST
    try:
        manifest = read_json_file(path)
        found = manifest['format']
    except FileNotFoundError:
        raise InputError(f'{folder}: no prepared {content} there ({MANIFEST} is missing)') from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f'{path}: damaged ({one_line(error)}); {_prepare_again_advice(folder, content)}') from None
    if found != version:
        raise InputError(
            f'{path}: format {found}, this version reads {version}; {_prepare_again_advice(folder, content)}'
        )
    if manifest.get('checksum') != manifest_checksum(manifest):
        raise InputError(f'{path}: damaged, its checksum differs; {_prepare_again_advice(folder, content)}')
    return manifest


def check_file_checksums(folder: Path, manifest: Mapping[str, Any], content: str) -> None:
    """Raises InputError unless every file has the size and checksum that the manifest states; `content` has the same
    meaning as in `read_manifest`."""
    for name, expected in manifest['files'].items():
        path = folder / name
        if not path.is_file():
            raise InputError(f'{path}: missing from the prepared {content}; {_prepare_again_advice(folder, content)}')
        if path.stat().st_size != expected['bytes'] or file_sha256(path) != expected['sha256']:
            raise InputError(
                f'{path}: damaged, its bytes differ from the manifest; {_prepare_again_advice(folder, content)}'
            )


def file_sizes_and_checksums(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns size and SHA-256 of every file below `folder`, sorted by relative path; the manifest stores the result as
    `files`."""
    paths = sorted(path for path in folder.rglob('*') if path.is_file())
    return {
        path.relative_to(folder).as_posix(): {'bytes': path.stat().st_size, 'sha256': file_sha256(path)}
        for path in paths
    }


def load_array(path: Path, content: str, *, is_mapped: bool = False) -> np.ndarray:
    """Loads the NumPy array of a file whose checksum has already been verified.

    Args:
        path: the file.
        content: 'corpus' or 'text', for messages.
        is_mapped: memory-map the array, for large files.

    Raises:
        InputError: the file has no array of plain numbers, which a forged manifest makes possible.
    """
    try:
        return np.load(path, mmap_mode='r' if is_mapped else None, allow_pickle=False)
    except (OSError, EOFError, ValueError, MemoryError) as error:
        raise InputError(
            f'{path}: no array of numbers ({one_line(error)}); {_prepare_again_advice(path.parent, content)}'
        ) from None


def manifest_checksum(manifest: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of a manifest; its field `checksum` is left out."""
    return json_sha256({name: value for name, value in manifest.items() if name != 'checksum'})


def json_sha256(value: Any) -> str:
    """Returns the SHA-256 of a value, in hex; the value is written as JSON with sorted names."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes, in hex."""
    with path.open('rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()


def one_line(error: BaseException) -> str:
    """Returns the message of an error without line breaks."""
    return ' '.join(str(error).split())


def _prepare_again_advice(folder: Path, content: str) -> str:
    return f'delete the folder {folder} to prepare the {content} again'
