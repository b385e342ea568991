"""Runs a child program that never outlives its parent process, even if the parent is killed.

`command_tied_to_parent` puts this file before the program. On Linux the kernel then kills the program when the parent
dies. On other systems this process stays, and checks once a second whether the parent is still alive.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1  # option of Linux's prctl for the signal that a child gets when its parent dies
INTERVAL = 1.0  # seconds between two checks whether the parent is still alive


def command_tied_to_parent(command: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Returns the command line that runs `command` as a program which ends as soon as this process ends.

    It must be started from the main thread, because Linux watches the thread that starts the program.
    """
    return [sys.executable, '-I', os.path.abspath(__file__), str(os.getpid()), *map(str, command)]


def exec_tied_to_parent(command: list[str], parent: int) -> None:
    """Replaces this process by the given program, which the Linux kernel kills when the parent process ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # if the parent ended before `prctl` was called, the kernel sends no signal
        sys.exit(1)
    os.execvp(command[0], command)


def run_until_parent_ends(command: Sequence[str], parent: int) -> int:
    """Runs a program, kills it once the parent process has ended, and returns the program's exit code."""
    with subprocess.Popen(command) as child:
        while child.poll() is None:
            if os.getppid() != parent:
                child.kill()
            time.sleep(INTERVAL)
    return child.returncode


if __name__ == '__main__':
    _, _parent, *_command = sys.argv
    if sys.platform == 'linux':
        exec_tied_to_parent(_command, int(_parent))
    sys.exit(run_until_parent_ends(_command, int(_parent)))
