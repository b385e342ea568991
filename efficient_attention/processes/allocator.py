"""Keeps freed memory inside the process on Linux CPUs, where giving it back costs more than the arithmetic.

XLA on the CPU allocates every temporary buffer afresh. The C library serves large ones by mapping new pages and
unmaps them on release, so each training step touches, and the kernel clears, all its pages again. Four settings of
glibc's `mallopt` stop that. Measured on 2 cores: training steps a quarter shorter; of a step that frees 5 GiB the
kernel's share falls from 24 % to 0.5 %.

What is kept has a limit. Free memory lies between what is in use, where a later step does not always find it again, so
without one a process comes to hold far more than it ever had in use at one time (15 GB in a run that needs 7.7). A
thread looks at it, and gives all free pages back where others may miss them: when the host, or the container, has less
than RESERVE of its memory unused, and more is kept than SLACK beyond the largest use of the last minute. A step that
needs as much as the one before it keeps most of its pages all the same.

The settings act on what is allocated, freed or started after them. They may come after the imports, which allocate
little, if they come before the first device, with which XLA starts the threads that allocate. Measured, in millions of
page faults of 60 steps of the quickstart's model: after the imports 0.70, before them 0.91, without the settings 12.9.

One of the four comes earlier: that no thread has an arena of its own, before an entry point starts its first thread,
which waits for stop signals. Where a thread has allocated before, glibc deals all arenas out in turn, and a thread of
XLA may get that one, whose blocks lie in 64 MiB at most: larger ones are then mapped and unmapped at each step all the
same. Seen in two of three processes that trained at once: there 22 % of the time of FAVOR+'s steps was the kernel's,
and none of it with one arena. Commands that do not tune the allocator keep the arenas of their threads.
"""

import collections
import ctypes
import os
import platform
import threading
import time

from efficient_attention.host_memory import unused_share

SWITCH = 'EFFICIENT_ATTENTION_ALLOCATOR'  # 'default' leaves the allocator alone, 'unlimited' keeps all freed memory
SLACK = 2**30  # bytes that may be kept beyond the largest use of the last MEMORY seconds
RESERVE = 0.5  # share of all memory that is unused where nothing is given back
MEMORY = 60.0  # seconds
INTERVAL = 0.5  # seconds between two looks, at least
LOOKING = 0.01  # share of the time that looks may take: one walks over all free chunks while others wait to allocate
# Parameter numbers of glibc's malloc.h and their values.
_SETTINGS = {
    'M_MMAP_MAX': (-4, 0),
    'M_TRIM_THRESHOLD': (-1, -1),  # never; 2**31 - 1 would give back what is free beyond 2 GiB
    'M_TOP_PAD': (-2, 256 * 2**20),
    'M_ARENA_MAX': (-8, 1),
}


def has_accelerator() -> bool:
    """Whether JAX may run on a GPU or TPU here, told from its settings and the device files, without starting it."""
    if os.environ.get('JAX_PLATFORMS') == 'cpu':
        return False
    return any(os.path.exists(path) for path in ('/dev/nvidia0', '/dev/kfd', '/dev/accel0', '/dev/vfio/0'))


def reason_to_leave_it() -> str:
    """Why this process's allocator is not tuned; '' where it is."""
    if os.environ.get(SWITCH) == 'default':
        return f'{SWITCH}=default'
    if has_accelerator():
        return 'this host has accelerators'
    if platform.system() != 'Linux' or platform.libc_ver()[0] != 'glibc':
        return 'not glibc'
    return ''


def share_one_arena() -> None:
    """Has threads that start from here on allocate where the main thread does; before the first of them starts.

    Where glibc refuses, `keep_freed_memory`, which asks again, says so.
    """
    if not reason_to_leave_it():
        ctypes.CDLL(None).mallopt(*_SETTINGS['M_ARENA_MAX'])


def keep_freed_memory() -> str:
    """Tunes this process's allocator, before the first large allocation; says in one line what it did."""
    if reason := reason_to_leave_it():
        return f'allocator: left alone ({reason})'
    library = ctypes.CDLL(None)
    refused = [name for name, (parameter, value) in _SETTINGS.items() if not library.mallopt(parameter, value)]
    if refused:
        return f'allocator: glibc refused {", ".join(refused)}'
    if os.environ.get(SWITCH) == 'unlimited' or not hasattr(library, 'mallinfo2'):
        return f'allocator: freed memory stays in the process, without a limit (opt out: {SWITCH}=default)'
    library.mallinfo2.restype = MallInfo
    threading.Thread(target=KeptMemory(library).watch, name='allocator', daemon=True).start()
    return f'allocator: freed memory stays in the process (opt out: {SWITCH}=default)'


class MallInfo(ctypes.Structure):
    """What `mallinfo2` returns, which glibc has since 2.33."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in 'arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost'.split()
    ]


class KeptMemory:
    """The limit of what this process keeps of freed memory.

    Args:
        library: glibc.
        slack: bytes that may be kept beyond the largest use.
    """

    def __init__(self, library: ctypes.CDLL, *, slack: int = SLACK) -> None:
        self._library, self._slack = library, slack
        self._uses: collections.deque[tuple[float, int]] = collections.deque()  # (seconds, bytes), falling in bytes
        self._given_back = -MEMORY  # when free memory last was, in seconds
        self._outside = 0  # resident bytes that are no memory of the allocator, as last seen

    def watch(self) -> None:
        """Looks from time to time, for ever."""
        while True:
            start = time.monotonic()
            self.look(start)
            time.sleep(pause(time.monotonic() - start))

    def look(self, now: float) -> bool:
        """Gives free memory back where more is kept than the limit; returns whether it did. `now`: seconds."""
        info = self._library.mallinfo2()
        limit = self._largest_use(now, info.uordblks) + self._slack
        if now < self._given_back + MEMORY:
            return False
        if info.arena <= limit or resident_bytes() - self._outside <= limit or unused_share() > RESERVE:
            return False
        self._library.malloc_trim(0)
        self._given_back = now
        # Now everything of the allocator's that is resident is in use. Seen too low at first, as 0, or later, when
        # Python has grown, this has memory given back too early once, and is seen again.
        self._outside = max(0, resident_bytes() - self._library.mallinfo2().uordblks)
        return True

    def _largest_use(self, now: float, used: int) -> int:
        """The most bytes that were in use at a look of the last MEMORY seconds, this one included."""
        while self._uses and self._uses[-1][1] <= used:
            self._uses.pop()
        self._uses.append((now, used))
        while self._uses[0][0] < now - MEMORY:
            self._uses.popleft()
        return self._uses[0][1]


def pause(look: float) -> float:
    """Seconds to the next look after one that took so many; measured while MiniLM was fine-tuned: one of 30 ms."""
    return max(INTERVAL, look / LOOKING)


def resident_bytes() -> int:
    """Memory that this process holds, its files not counted."""
    with open('/proc/self/statm', encoding='ascii') as file:
        _, resident, shared, *_ = map(int, file.read().split())
    return (resident - shared) * os.sysconf('SC_PAGE_SIZE')
