"""Locks a workdir, so that only one training run at a time writes into it."""

import contextlib
import fcntl
import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from efficient_attention.atomic_files import write_failed_error
from efficient_attention.errors import InputError

FILE_NAME = 'lock'
# Runs write into these folders of a workdir, or remove files from them.
FOLDERS = ('checkpoints', 'checkpoints/damaged', 'checkpoints/trash', 'tensorboard', 'csv', 'trackers', 'profile')


class WorkdirLock:
    """Locks a workdir for this process until `close` is called, or until the process ends in any way.

    The lock belongs to the process, not to the open file (`fcntl.lockf`), so forked processes do not inherit it. Data
    workers that outlive a killed trainer thus do not keep the workdir locked. The operating system cannot tell two
    holders in one process apart, but this class can.

    Raises:
        InputError: another run has locked the workdir (names the process and the host). Also if a file in it is a link,
            or a folder that runs write into.
        RunError, InputError: the lock cannot be written.
    """

    # `_held` has the locks of this process, because the operating system lets one process lock a file twice.
    _held: set[Path] = set()

    def __init__(self, workdir: Path) -> None:
        _check_no_links(workdir)
        try:
            workdir.mkdir(parents=True, exist_ok=True)
            (workdir / FILE_NAME).touch()
        except OSError as error:
            raise write_failed_error(workdir, error) from None
        self._path = (workdir / FILE_NAME).resolve()
        # The lock file is opened after this check, because closing a second handle of the file would release the lock.
        if self._path in self._held:
            raise _in_use_error(workdir, 'this process')
        try:
            self._file = self._path.open('a+')
        except OSError as error:
            raise InputError(f'{self._path}: cannot be written ({error.strerror})') from None
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            holder = self._file.read().strip()
            self._file.close()
            raise _in_use_error(workdir, holder or 'another process') from None
        self._held.add(self._path)
        try:
            self._file.truncate(0)
            self._file.write(f'process {os.getpid()} on {socket.gethostname()}\n')
            self._file.flush()
        except OSError as error:
            self.close()
            raise write_failed_error(self._path, error) from None

    def close(self) -> None:
        """Releases the workdir. The lock file stays, because removing it could break the lock of the next run."""
        # `close` may raise an error, because it tries again to write the text that `write` could not write.
        with contextlib.suppress(OSError):
            self._file.close()
        self._held.discard(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        self.close()


def _check_no_links(workdir: Path) -> None:
    """Raises InputError if a file or folder that a run writes or removes is a symbolic link."""
    files = [path for path in sorted(workdir.iterdir()) if not path.is_dir()] if workdir.is_dir() else []
    for path in [*files, *(workdir / name for name in FOLDERS)]:
        if path.is_symlink():
            kind = 'folder' if path.is_dir() else 'file'
            raise InputError(f'{path}: a link to a {kind}; a run writes files into its own folder only')


def _in_use_error(workdir: Path, holder: str) -> InputError:
    return InputError(f'{workdir} is in use by another training run ({holder}); wait for it or name another --workdir')
