"""Writes and verifies checksum files of a folder: `seal-*.sha256` hold the SHA-256 of every file, to find damage before
files are used.

Checksum files are written once all other files are on disk, in the format of `sha256sum --check`. If several processes
wrote the folder, each has a checksum file for the files that it wrote. The last line is the SHA-256 of the lines before
it, so that a damaged checksum file is found too. Checksums find damage, not forgery: whoever can write the files can
also write the checksums.
"""

import fnmatch
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from efficient_attention.atomic_files import flush
from efficient_attention.processes.phase_log import SEALED, SEALING, note_phase

SEAL = re.compile(r'seal-(\d+)-of-(\d+)\.sha256')
# Orbax lets each process write files whose paths contain the number of the process.
PROCESS = re.compile(r'(?:^|/)(?:ocdbt\.)?process_(\d+)(?:/|$)')
LINE = re.compile(r'([0-9a-f]{64})  (.+)')
HASHES_AT_ONCE = 8  # number of files whose checksums are computed concurrently


class ChecksumManifest(NamedTuple):
    """The content of all checksum files in a folder: the folder's label and the SHA-256 of each file."""

    label: str
    hashes: dict[str, str]  # path of a file within the folder, with slashes -> SHA-256 of the file


class ProcessShare(NamedTuple):
    """The share of a folder's files whose checksums one process verifies: every `processes`-th file, from file `number`
    on.
    """

    number: int = 0
    processes: int = 1


WHOLE = ProcessShare()


def write_checksums(folder: Path, label: str, *, process: int = 0, processes: int = 1) -> None:
    """Flushes a folder to disk, and writes a checksum file for the files that this process wrote.

    Args:
        folder: the folder; its content must not change any more.
        label: one line that identifies the folder, such as a checkpoint's step; it reveals a folder in the wrong place.
        process: number of this process.
        processes: how many of them write a checksum file into the folder.

    Raises:
        OSError: a file cannot be read, or the checksum file cannot be written; the folder then has incomplete
            checksums.
    """
    note_phase(SEALING)
    # Checksum files are left out, because other processes are writing theirs at the same moment.
    names = [name for name in _list_files(folder, but='seal-*') if _writing_process(name, processes) == process]
    lines = [f'# {label}']
    for name in names:
        flush(folder / name)
        lines.append(f'{_file_sha256(folder / name)}  {name}')
    body = ('\n'.join(lines) + '\n').encode()
    path = folder / f'seal-{process}-of-{processes}.sha256'
    temporary = path.with_suffix('.tmp')
    with temporary.open('wb') as file:
        file.write(body + _closing_checksum_line(body) + b'\n')
        file.flush()
        os.fsync(file.fileno())
    # The checksum file is renamed last: if it exists after a power cut, the files and folders that it covers exist too.
    for inner in [*_list_folders(folder), folder, folder.parent]:
        flush(inner)
    temporary.replace(path)
    flush(folder)
    note_phase(SEALED)


def has_all_checksums(folder: Path) -> bool:
    """Returns whether every process that wrote the folder has written its checksum file; does not read these files."""
    try:
        return not missing_checksums(folder)
    except OSError:
        return False


def missing_checksums(folder: Path) -> str:
    """Returns a short text that names a missing or superfluous checksum file; '' if there is no such file.

    Raises:
        OSError: the folder cannot be read.
    """
    found = [match for path in sorted(folder.iterdir()) if (match := SEAL.fullmatch(path.name))]
    if not found:
        return 'seal-0-of-*.sha256 is missing'
    count = int(found[0][2])  # This number from a file name may be huge, so no loop counts up to it.
    numbers = {int(match[1]) for match in found if int(match[2]) == count}
    for match in found:
        if int(match[2]) != count or int(match[1]) >= count:
            return f'{match[0]} is one too many'
    missing = min(set(range(len(numbers) + 1)) - numbers)
    return f'seal-{missing}-of-{count}.sha256 is missing' if missing < count else ''


def has_any_checksums(folder: Path) -> bool:
    """Returns whether the folder has at least one checksum file."""
    return folder.is_dir() and any(SEAL.fullmatch(path.name) for path in folder.iterdir())


def find_checksum_mismatch(
    folder: Path, label: str, *, may_be_added: Callable[[str], bool] | None = None, share: ProcessShare = WHOLE
) -> str:
    """Returns a short text that names the first file of a folder that differs from its checksum, and says how; '' if no
    file differs.

    Args:
        folder: a folder with checksum files.
        label: the label that the checksum files should have.
        may_be_added: whether to ignore a file of this name that has no checksum; None = ignore none. If given, only the
            top level of the folder is checked, and links are followed, since download caches use links.
        share: the files whose content is compared; names are always compared.
    """
    try:
        sealed = _read_checksums(folder, may_be_links=may_be_added is not None)
        if sealed.label != label:
            return f'its checksums belong to {sealed.label}'
        found = (
            _list_files(folder)
            if may_be_added is None
            else _checked_file_names(folder, may_be_added, sealed.hashes.keys())
        )
        names = {name for name in found if not SEAL.fullmatch(name)}
        for name in sorted(names ^ sealed.hashes.keys()):
            return f'{name} is {"not in its checksums" if name in names else "missing"}'
        if changed := _first_changed_file(folder, sealed.hashes, share):
            return f'{changed} is not what was written'
    except _UnreadableChecksums as error:
        return str(error)
    except OSError as error:
        return f'{error.filename or folder}: {error.strerror}'
    return ''


class _UnreadableChecksums(Exception):
    """A checksum file is damaged or missing, or a path in the folder cannot have a checksum."""


def _read_checksums(folder: Path, *, may_be_links: bool) -> ChecksumManifest:
    labels: set[str] = set()
    hashes: dict[str, str] = {}
    for path in sorted(folder.iterdir()):
        if not SEAL.fullmatch(path.name):
            continue
        if path.is_symlink() and not may_be_links:
            raise _UnreadableChecksums(f'{path.name} is a link')
        text = path.read_bytes()
        body, _, last = text[:-1].rpartition(b'\n')
        if not text.endswith(b'\n') or last != _closing_checksum_line(body + b'\n'):
            raise _UnreadableChecksums(f'{path.name} is not what was written')
        first, *lines = body.decode(errors='replace').split('\n')
        labels.add(first.removeprefix('# '))
        hashes |= {match[2]: match[1] for line in lines if (match := LINE.fullmatch(line))}
    if fault := missing_checksums(folder):
        raise _UnreadableChecksums(f'it lacks checksums: {fault}')
    if len(labels) != 1:
        raise _UnreadableChecksums('its checksum files are of different folders')
    return ChecksumManifest(labels.pop(), hashes)


def _first_changed_file(folder: Path, hashes: dict[str, str], share: ProcessShare) -> str:
    """Returns the first file in a process's share whose content differs from its checksum; '' if there is none."""
    by_size = sorted(hashes, key=lambda name: (-(folder / name).stat().st_size, name))
    chosen = set(by_size[share.number :: share.processes])
    names = [name for name in hashes if name in chosen]
    with ThreadPoolExecutor(HASHES_AT_ONCE) as pool:
        found: Iterable[str] = pool.map(_file_sha256, [folder / name for name in names])
        return next((name for name, one in zip(names, found, strict=True) if one != hashes[name]), '')


def _closing_checksum_line(body: bytes) -> bytes:
    return f'# {hashlib.sha256(body).hexdigest()}'.encode()


def _list_files(folder: Path, *, but: str = '') -> list[str]:
    """Returns the sorted relative paths of all files within a folder, except paths that match the pattern `but`."""
    found = []
    for path in sorted(folder.rglob('*')):
        name = path.relative_to(folder).as_posix()
        if fnmatch.fnmatchcase(name, but):
            continue
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise _UnreadableChecksums(f'{name} is {"a link" if path.is_symlink() else "no plain file"}')
        if path.is_file():
            found.append(name)
    return found


def _checked_file_names(folder: Path, may_be_added: Callable[[str], bool], listed: Set[str]) -> list[str]:
    names = sorted(path.name for path in folder.iterdir())
    return [name for name in names if name in listed or not may_be_added(name)]


def _list_folders(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob('*') if path.is_dir())


def _writing_process(name: str, processes: int) -> int:
    """Returns the number of the process that wrote a file of a checkpoint: 0, unless the file's path names another
    process of the run.
    """
    found = PROCESS.search(name)
    return int(found[1]) if found and int(found[1]) < processes else 0


def _file_sha256(path: Path) -> str:
    with path.open('rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()
