"""Programs that a command starts and that end with it, however it ends.

`child_command` puts this file before the program. On Linux the kernel then kills the program at the parent's death; on
other systems this process stays, and looks once a second whether the parent is still there.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1  # of prctl in Linux
INTERVAL = 1.0  # seconds between two looks


def child_command(command: Sequence[str | os.PathLike[str]]) -> list[str]:
    """What to start in place of `command`, from the main thread of this process: its end is what Linux looks at."""
    return [sys.executable, '-I', os.path.abspath(__file__), str(os.getpid()), *map(str, command)]


def become(command: list[str], parent: int) -> None:
    """Turns this process into the program, which the kernel kills when the parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        sys.exit(1)
    os.execvp(command[0], command)


def follow(command: Sequence[str], parent: int) -> int:
    """Runs the program until it ends, or kills it after the parent's end; returns its exit code."""
    with subprocess.Popen(command) as child:
        while child.poll() is None:
            if os.getppid() != parent:
                child.kill()
            time.sleep(INTERVAL)
    return child.returncode


if __name__ == '__main__':
    _, _parent, *_command = sys.argv
    if sys.platform == 'linux':
        become(_command, int(_parent))
    sys.exit(follow(_command, int(_parent)))
