"""What a process that measures sees of itself: its resident memory, and the seconds of its calls."""

import ctypes
import platform
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROCESS = Path('/proc/self')


def peak_bytes() -> int:
    """The largest resident memory of this process so far; Linux counts it in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == 'darwin' else 1024)


def start_peak() -> int | None:
    """The resident bytes now, from where on the system counts a new peak; None where it cannot (it is not Linux).

    Compiling takes more memory than a small step does, so the peak since the start of the process would hide it.
    """
    if platform.libc_ver()[0] == 'glibc':
        ctypes.CDLL(None).malloc_trim(0)  # what the compiler left behind would be used again, unseen
    try:
        (PROCESS / 'clear_refs').write_text('5', encoding='ascii')
        return status_bytes('VmRSS')
    except OSError:
        return None


def status_bytes(name: str) -> int:
    """A line of Linux's table of this process, which counts in KiB."""
    lines = (PROCESS / 'status').read_text(encoding='ascii').splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f'{name}:')) * 1024


def seconds_of(call: Callable[[], Any], steps: int) -> list[float]:
    """Seconds of each of `steps` calls after one that is not counted."""
    call()
    taken = []
    for _ in range(steps):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return taken
