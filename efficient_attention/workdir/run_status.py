"""Records the state of a run in `status.json` of its workdir: whether it runs, how it ended, its time and command.

The file is only for the report. A run never reads it to decide anything.
"""

import dataclasses
import json
import os
import shlex
import socket
import sys
import time
from pathlib import Path
from typing import Any

import jax

from efficient_attention.atomic_files import write_atomically
from efficient_attention.config.json_parsing import read_json_file
from efficient_attention.errors import RunStopped, is_number, is_whole_number, one_line

FILE_NAME = 'status.json'
RUNNING, COMPLETE, STOPPED, FAILED = 'running', 'complete', 'stopped', 'failed'
KILLED = 'killed'  # never in the file: the file says `running`, but the process is gone


@dataclasses.dataclass(frozen=True)
class RunStatus:
    """The state of a run when it last wrote `status.json`. Times are seconds since 1970."""

    state: str = RUNNING
    error: str = ''  # the error that ended a failed run, in one line
    command: str = ''  # the command of the newest start
    first_started: float = 0.0
    started: float = 0.0  # time of the newest start
    seen: float = 0.0  # time of this record
    starts: int = 1  # how often the run was started
    earlier_seconds: float = 0.0  # duration of all starts before the newest start
    process: int = 0  # process id of the newest start
    host: str = ''

    @property
    def seconds(self) -> float:
        """The duration of the run in seconds, over all starts."""
        return self.earlier_seconds + max(self.seen - self.started, 0.0)

    @property
    def current_state(self) -> str:
        """The state now: KILLED if no end is recorded and the process on this host is gone."""
        is_gone = self.state == RUNNING and self.host == socket.gethostname() and not _is_alive(self.process)
        return KILLED if is_gone else self.state


def read_status(workdir: Path) -> RunStatus | None:
    """Returns the recorded state of a run; None if the file is missing or damaged."""
    try:
        found = read_json_file(workdir / FILE_NAME)
    except (OSError, ValueError):
        return None
    return RunStatus(**found) if _is_valid(found) else None


def record_start(workdir: Path) -> None:
    """Records that this process starts or resumes the run, in process 0 only.

    Raises:
        RunError, InputError: the file cannot be written.
    """
    if jax.process_index() > 0:
        return
    now, before = time.time(), read_status(workdir)
    status = RunStatus(
        command=shlex.join(sys.orig_argv),
        first_started=before.first_started if before else now,
        started=now,
        seen=now,
        starts=before.starts + 1 if before else 1,
        earlier_seconds=before.seconds if before else 0.0,
        process=os.getpid(),
        host=socket.gethostname(),
    )
    _write_status(workdir, status)


def record_still_running(workdir: Path) -> None:
    """Records that the run is still running, in process 0 only."""
    _record_state(workdir, RUNNING, '')


def record_end(workdir: Path, error: BaseException | None) -> None:
    """Records how the run ended: complete without an error, stopped after a stop signal, else failed."""
    if error is None:
        _record_state(workdir, COMPLETE, '')
    elif isinstance(error, (RunStopped, KeyboardInterrupt)):
        _record_state(workdir, STOPPED, '')
    else:
        _record_state(workdir, FAILED, f'{type(error).__name__}: {one_line(error)}')


def _record_state(workdir: Path, state: str, error: str) -> None:
    status = read_status(workdir)
    if status is not None and jax.process_index() == 0:
        _write_status(workdir, dataclasses.replace(status, state=state, error=error, seen=time.time()))


def _write_status(workdir: Path, status: RunStatus) -> None:
    write_atomically(workdir / FILE_NAME, json.dumps(dataclasses.asdict(status), indent=2) + '\n')


def _is_valid(found: Any) -> bool:
    """Returns whether JSON values are the fields of a RunStatus, with values of the right kinds."""
    if not isinstance(found, dict) or found.keys() != {field.name for field in dataclasses.fields(RunStatus)}:
        return False
    checks = {str: lambda value: isinstance(value, str), int: is_whole_number, float: _is_time}
    return all(checks[type(field.default)](found[field.name]) for field in dataclasses.fields(RunStatus))


def _is_time(value: Any) -> bool:
    """Returns whether a value is a number of seconds that a date can show."""
    return is_number(value) and 0 <= value < 2**36


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # The process belongs to another user.
        pass
    return True
