"""Makes Linux's malloc keep freed memory inside the process, because releasing it slows down training on CPUs.

XLA on the CPU allocates every temporary buffer anew. The C library maps new pages for large buffers and unmaps them on
release. Each training step thus touches all its pages again, and the kernel clears them. Four settings of glibc's
`mallopt` prevent that. Measured on 2 cores: training steps are a quarter shorter; in a step that frees 5 GiB the
kernel's share of the time falls from 24 % to 0.5 %.

The kept memory has a limit. Free memory is scattered among used memory, and a later step cannot always reuse it.
Without a limit, a process therefore holds far more than it ever used at one time (15 GB in a run that needs 7.7). A
thread checks the memory. It releases all free pages if two conditions hold. First, the host, or the container, has less
than RESERVE of its memory unused. Second, the process keeps more than SLACK beyond the largest use of the last minute.
A step that needs as much memory as the step before still keeps most of its pages.

The settings affect only later allocations, releases and threads. They may follow the imports, which allocate little.
They must precede the first device, because XLA then starts the threads that allocate. Measured, in millions of page
faults of 60 steps of the quickstart's model: 0.70 after the imports, 0.91 before them, 12.9 without the settings.

One setting must come earlier: one arena for all threads must be set before an entry point starts its first thread,
which waits for stop signals. If a thread has allocated before, glibc assigns all arenas in turn. A thread of XLA may
then get the arena of that first thread, which holds blocks of at most 64 MiB. Larger blocks are then still mapped and
unmapped at each step. This happened in two of three processes that trained at once: the kernel took 22 % of the time of
FAVOR+'s steps there, and none with one arena. Commands that do not tune the allocator keep separate arenas.
"""

import collections
import ctypes
import os
import platform
import sys
import threading
import time

from efficient_attention.host_memory import unused_memory_share

# This environment variable sets the allocator: 'default' does not tune it, 'unlimited' keeps all freed memory.
SWITCH = 'EFFICIENT_ATTENTION_ALLOCATOR'
SLACK = 2**30  # bytes that the process may keep beyond its largest memory use in the last MEMORY seconds
RESERVE = 0.5  # if more than this share of the host's memory is unused, no memory is released
MEMORY = 60.0  # length in seconds of the time window over which the largest memory use counts
INTERVAL = 0.5  # minimum seconds between two checks
# Checks may take at most this share of the time, because other threads cannot allocate during a check.
LOOKING = 0.01
# These are the parameter numbers in glibc's malloc.h, with the values to set.
_SETTINGS = {
    'M_MMAP_MAX': (-4, 0),
    'M_TRIM_THRESHOLD': (-1, -1),  # -1 never releases memory; 2**31 - 1 would release free memory beyond 2 GiB
    'M_TOP_PAD': (-2, 256 * 2**20),
    'M_ARENA_MAX': (-8, 1),
}


def has_accelerator() -> bool:
    """Whether JAX may use a GPU or TPU on this host, judged by JAX_PLATFORMS and device files, without starting JAX."""
    if os.environ.get('JAX_PLATFORMS') == 'cpu':
        return False
    return any(os.path.exists(path) for path in ('/dev/nvidia0', '/dev/kfd', '/dev/accel0', '/dev/vfio/0'))


def reason_allocator_untuned() -> str:
    """Returns the reason why the memory allocator of this process is not tuned; '' if it is tuned."""
    if os.environ.get(SWITCH) == 'default':
        return f'{SWITCH}=default'
    if has_accelerator():
        return 'this host has accelerators'
    if platform.system() != 'Linux' or platform.libc_ver()[0] != 'glibc':
        return 'not glibc'
    return ''


def use_single_malloc_arena() -> None:
    """Makes all threads share one malloc arena, the main thread's; must be called before the first thread starts.

    If glibc refuses the setting, `keep_freed_memory` reports the refusal, because it repeats the setting.
    """
    if not reason_allocator_untuned():
        ctypes.CDLL(None).mallopt(*_SETTINGS['M_ARENA_MAX'])


def keep_freed_memory() -> str:
    """Makes malloc keep freed memory in this process, and returns one line that says so, or why it does not.

    Must be called before the first large allocation.
    """
    if reason := reason_allocator_untuned():
        return f'allocator: not tuned ({reason})'
    library = ctypes.CDLL(None)
    refused = [name for name, (parameter, value) in _SETTINGS.items() if not library.mallopt(parameter, value)]
    if refused:
        return f'allocator: glibc refused {", ".join(refused)}'
    if os.environ.get(SWITCH) == 'unlimited' or not hasattr(library, 'mallinfo2'):
        return f'allocator: freed memory stays in the process, without a limit (opt out: {SWITCH}=default)'
    library.mallinfo2.restype = MallInfo
    threading.Thread(target=FreedMemoryLimiter(library).trim_periodically, name='allocator', daemon=True).start()
    return f'allocator: freed memory stays in the process (opt out: {SWITCH}=default)'


def tune_allocator() -> None:
    """Makes malloc keep freed memory in this process.

    Prints a line only if the environment variable EFFICIENT_ATTENTION_ALLOCATOR is set, or if glibc refuses. Must be
    called before the first large allocation.
    """
    line = keep_freed_memory()
    if SWITCH in os.environ or 'refused' in line:
        print(line, file=sys.stderr)


class MallInfo(ctypes.Structure):
    """The C struct with malloc's statistics that glibc's `mallinfo2` returns, available since glibc 2.33."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in 'arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost'.split()
    ]


class FreedMemoryLimiter:
    """Releases freed memory to the operating system whenever this process keeps too much of it.

    Args:
        library: glibc.
        slack: bytes that the process may keep beyond its recent largest memory use.
    """

    def __init__(self, library: ctypes.CDLL, *, slack: int = SLACK) -> None:
        self._library, self._slack = library, slack
        # The pairs (time in seconds, bytes in use) are in descending order of bytes.
        self._uses: collections.deque[tuple[float, int]] = collections.deque()
        self._given_back = -MEMORY  # time in seconds of the last release of memory
        self._outside = 0  # resident bytes that malloc did not allocate, estimated at the last release

    def trim_periodically(self) -> None:
        """Checks periodically, without end, whether the process keeps too much freed memory, and releases it."""
        while True:
            start = time.monotonic()
            self.trim_excess_memory(start)
            time.sleep(seconds_until_next_check(time.monotonic() - start))

    def trim_excess_memory(self, now: float) -> bool:
        """Releases freed memory if the process keeps more than the limit; returns whether it released any.

        `now` is the current time in seconds.
        """
        info = self._library.mallinfo2()
        limit = self._recent_peak_use(now, info.uordblks) + self._slack
        if now < self._given_back + MEMORY:
            return False
        if info.arena <= limit or resident_bytes() - self._outside <= limit or unused_memory_share() > RESERVE:
            return False
        self._library.malloc_trim(0)
        self._given_back = now
        # After the release, all memory that malloc holds is in use, so the resident bytes outside of malloc are known.
        # If `_outside` was too low before, memory was released too early, but only once.
        self._outside = max(0, resident_bytes() - self._library.mallinfo2().uordblks)
        return True

    def _recent_peak_use(self, now: float, used: int) -> int:
        """Returns the largest number of bytes in use at any check of the last MEMORY seconds, including this check."""
        while self._uses and self._uses[-1][1] <= used:
            self._uses.pop()
        self._uses.append((now, used))
        while self._uses[0][0] < now - MEMORY:
            self._uses.popleft()
        return self._uses[0][1]


def seconds_until_next_check(look: float) -> float:
    """Returns the seconds to wait before the next memory check, after a check that took `look` seconds.

    A check took 30 ms while MiniLM was fine-tuned.
    """
    return max(INTERVAL, look / LOOKING)


def resident_bytes() -> int:
    """Returns the resident memory of this process in bytes, without mapped files."""
    with open('/proc/self/statm', encoding='ascii') as file:
        _, resident, shared, *_ = map(int, file.read().split())
    return (resident - shared) * os.sysconf('SC_PAGE_SIZE')
