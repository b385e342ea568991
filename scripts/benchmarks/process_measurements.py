"""Measures this process itself: its resident memory, and the seconds that calls take."""

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
    """Returns the largest resident memory of this process so far, in bytes. Linux reports it in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == 'darwin' else 1024)


def reset_peak_memory() -> int | None:
    """Resets the peak of resident memory, and returns the resident bytes now; returns None if this is not Linux.

    Compiling takes more memory than a small step, so a peak since the start of the process would hide the step.
    """
    if platform.libc_ver()[0] == 'glibc':
        # Memory that the compiler freed is released here. If a measured call reused it, it would not be counted.
        ctypes.CDLL(None).malloc_trim(0)
    try:
        (PROCESS / 'clear_refs').write_text('5', encoding='ascii')
        return read_process_status_bytes('VmRSS')
    except OSError:
        return None


def read_process_status_bytes(name: str) -> int:
    """Reads one memory value of this process, such as 'VmRSS', from Linux's /proc/self/status; returns bytes."""
    lines = (PROCESS / 'status').read_text(encoding='ascii').splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f'{name}:')) * 1024


def time_calls(call: Callable[[], Any], steps: int) -> list[float]:
    """Calls a function repeatedly; returns the seconds of each call, except a first untimed call."""
    call()
    taken = []
    for _ in range(steps):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return taken
