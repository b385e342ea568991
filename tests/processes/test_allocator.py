"""Tests the tuning of glibc's allocator: its messages, the cases in which it does nothing, and that freed memory is
kept.
"""

import ctypes
import os
import platform
import resource
import subprocess
import sys
import textwrap

import pytest

from efficient_attention.processes import allocator
from efficient_attention.processes.allocator import SWITCH, keep_freed_memory, tune_allocator

NEEDS_GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='needs glibc')


class Library:
    """Imitates a C library whose mallopt refuses the given parameters."""

    def __init__(self, *refused: int) -> None:
        self.refused, self.calls = refused, []  # without mallinfo2 no thread that limits the freed memory is started

    def mallopt(self, parameter: int, value: int) -> int:
        self.calls.append((parameter, value))
        return parameter not in self.refused


@pytest.fixture
def library(monkeypatch):
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(platform, 'system', lambda: 'Linux')
    monkeypatch.setattr(platform, 'libc_ver', lambda: ('glibc', '2.36'))
    library = Library()
    monkeypatch.setattr(ctypes, 'CDLL', lambda _: library)
    return library


def test_four_settings_are_made(library):
    line = f'allocator: freed memory stays in the process, without a limit (opt out: {SWITCH}=default)'
    assert keep_freed_memory() == line
    assert library.calls == list(allocator._SETTINGS.values()) and len(library.calls) == 4


def test_the_switch_leaves_it_alone(library, monkeypatch):
    monkeypatch.setenv(SWITCH, 'default')
    assert keep_freed_memory() == f'allocator: not tuned ({SWITCH}=default)'
    assert not library.calls


def test_the_allocator_is_mentioned_only_if_asked_or_refused(library, monkeypatch, capsys):
    tune_allocator()
    assert len(library.calls) == 4 and capsys.readouterr().err == ''
    library.refused = (-1,)
    tune_allocator()
    assert capsys.readouterr().err == 'allocator: glibc refused M_TRIM_THRESHOLD\n'
    monkeypatch.setenv(SWITCH, 'default')
    tune_allocator()
    assert capsys.readouterr().err == f'allocator: not tuned ({SWITCH}=default)\n'


@pytest.mark.parametrize('system, libc', [('Darwin', ''), ('Linux', ''), ('Linux', 'musl')])
def test_other_systems_are_left_alone(library, monkeypatch, system, libc):
    monkeypatch.setattr(platform, 'system', lambda: system)
    monkeypatch.setattr(platform, 'libc_ver', lambda: (libc, ''))
    assert keep_freed_memory() == 'allocator: not tuned (not glibc)'
    assert not library.calls


def test_threads_share_an_arena_where_the_allocator_is_tuned(library, monkeypatch):
    allocator.use_single_malloc_arena()
    assert library.calls == [(-8, 1)]
    monkeypatch.setenv(SWITCH, 'default')
    allocator.use_single_malloc_arena()
    assert library.calls == [(-8, 1)]


def test_a_refused_setting_is_named(library):
    library.refused = (-1, -8)
    assert keep_freed_memory() == 'allocator: glibc refused M_TRIM_THRESHOLD, M_ARENA_MAX'


# Takes and frees 64 MiB, and counts the pages that the kernel has to map when they are taken again.
FAULTS = """
    import ctypes, resource, sys
    if sys.argv[1] == 'tuned late':
        import efficient_attention.training.loop
    if sys.argv[1] != 'plain':
        from efficient_attention.processes.allocator import keep_freed_memory
        keep_freed_memory()
    faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    before = [bytearray(2**26), faults()][1]
    again = [bytearray(2**26), faults()][1]
    print(again - before)
"""

# The same in three threads, one after another, of a process that starts like an entry point. Prints the largest count.
FAULTS_OF_THREADS = """
    import sys
    from efficient_attention.processes.signal_thread import catch_stop_signals
    catch_stop_signals(keeps_freed_memory=sys.argv[1] == 'tuned')
    import resource, threading, time
    from efficient_attention.processes.allocator import keep_freed_memory
    time.sleep(0.2)  # in which the thread that waits for signals has begun
    if sys.argv[1] == 'tuned':
        keep_freed_memory()
    found = []
    def take():
        faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        before = [bytearray(2**27), faults()][1]
        found.append([bytearray(2**27), faults()][1] - before)
    for _ in range(3):
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
    print(max(found))
"""


@NEEDS_GLIBC
def test_freed_memory_is_used_again_without_new_pages():
    def faults(kind: str) -> int:
        command = [sys.executable, '-c', textwrap.dedent(FAULTS), kind]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    pages = 2**26 // resource.getpagesize()
    assert faults('tuned') < 0.1 * pages < 0.9 * pages < faults('plain')
    assert faults('tuned late') < 0.1 * pages  # imports before the tuning change nothing


@NEEDS_GLIBC
def test_memory_that_threads_free_is_used_again_without_new_pages():
    def faults(kind: str) -> int:
        command = [sys.executable, '-c', textwrap.dedent(FAULTS_OF_THREADS), kind]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    pages = 2**27 // resource.getpagesize()
    assert faults('tuned') < 0.1 * pages < 0.9 * pages < faults('plain')


# Reserves 3 GiB without touching them, frees them, and prints by how many bytes the heap shrank.
SHRINKING = """
    import ctypes
    from efficient_attention.processes.allocator import keep_freed_memory
    keep_freed_memory()
    library = ctypes.CDLL(None)
    library.malloc.argtypes, library.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    library.free.argtypes, library.sbrk.restype = [ctypes.c_void_p], ctypes.c_void_p
    block = library.malloc(3 * 2**30)
    assert block
    before = library.sbrk(0)
    library.free(block)
    print(before - library.sbrk(0))
"""


@NEEDS_GLIBC
def test_a_step_that_frees_more_than_two_gibibytes_keeps_them_too():
    command = [sys.executable, '-c', textwrap.dedent(SHRINKING)]
    assert int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) == 0


class Heap:
    """Imitates a C library whose heap has `arena` bytes. `used` of them are in use; `free` ones stay resident until a
    trim.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.arena = self.used = self.free = self.outside = self.trims = 0
        self.unused_share = 0.0  # share of the host's memory
        monkeypatch.setattr(allocator, 'resident_bytes', lambda: self.used + self.free + self.outside)
        monkeypatch.setattr(allocator, 'unused_memory_share', lambda: self.unused_share)

    def has(self, *, used: int) -> None:
        """Puts `used` bytes in use: first free ones that are resident, then new ones."""
        self.used, self.free = used, max(0, self.used + self.free - used)
        self.arena = max(self.arena, self.used + self.free)

    def mallinfo2(self) -> allocator.MallInfo:
        return allocator.MallInfo(arena=self.arena, uordblks=self.used, fordblks=self.arena - self.used)

    def malloc_trim(self, pad: int) -> None:
        assert pad == 0
        self.free = 0
        self.trims += 1


def test_steps_that_need_the_same_keep_their_memory_and_the_rest_goes(monkeypatch):
    heap = Heap(monkeypatch)
    kept = allocator.FreedMemoryLimiter(heap, slack=10)
    for second in range(200):
        heap.has(used=100 if second % 2 else 20)  # 80 bytes are free between two steps
        assert not kept.trim_excess_memory(second)
    heap.free += 11 + 5  # fragments that no later step uses
    heap.arena += 11 + 5
    assert kept.trim_excess_memory(200) and heap.free == 0
    assert [kept.trim_excess_memory(201 + second) for second in range(50)] == [False] * 50


def test_what_was_needed_more_than_a_minute_ago_is_not_kept(monkeypatch):
    heap = Heap(monkeypatch)
    kept = allocator.FreedMemoryLimiter(heap, slack=10)
    heap.has(used=100)  # to compile
    assert not kept.trim_excess_memory(0)
    heap.has(used=20)
    assert not kept.trim_excess_memory(allocator.MEMORY) and heap.free == 80
    assert kept.trim_excess_memory(allocator.MEMORY + 1) and heap.free == 0


def test_what_grows_back_in_each_step_is_given_back_once_a_minute(monkeypatch):
    heap = Heap(monkeypatch)
    kept = allocator.FreedMemoryLimiter(heap, slack=10)
    for second in range(180):
        heap.has(used=20)
        heap.free = 30  # scattered bytes, so that the next step takes other pages
        heap.arena = 50
        kept.trim_excess_memory(second)
    assert heap.trims == 180 // allocator.MEMORY


def test_looks_take_a_hundredth_of_the_time_at_most():
    assert allocator.seconds_until_next_check(0.0) == allocator.INTERVAL
    assert allocator.seconds_until_next_check(0.03) == pytest.approx(3.0)


def test_nothing_is_given_back_while_half_of_the_memory_is_unused(monkeypatch):
    heap = Heap(monkeypatch)
    kept = allocator.FreedMemoryLimiter(heap, slack=10)
    heap.has(used=100)
    heap.has(used=20)
    heap.unused_share = 0.51
    assert not kept.trim_excess_memory(0) and not kept.trim_excess_memory(100) and heap.free == 80
    heap.unused_share = 0.49
    assert kept.trim_excess_memory(200) and heap.free == 0


def test_memory_outside_of_the_allocator_has_free_memory_given_back_once(monkeypatch):
    heap = Heap(monkeypatch)
    kept = allocator.FreedMemoryLimiter(heap, slack=10)
    heap.outside = 1000
    heap.has(used=15)
    heap.has(used=4)
    assert [kept.trim_excess_memory(second) for second in (1, allocator.MEMORY + 1)] == [True, False]
    for second in range(100, 200):
        heap.has(used=12 if second % 2 else 4)
        assert not kept.trim_excess_memory(second)


# Takes 256 MiB in pieces and frees every other one, so that no free piece is at the end of the heap.
# Prints whether two checks trim the heap, and the change of resident bytes after each of them.
FRAGMENTS = """
    import ctypes
    from efficient_attention.processes import allocator
    from efficient_attention.processes.allocator import FreedMemoryLimiter, MallInfo, keep_freed_memory, resident_bytes
    allocator.RESERVE = 1.0
    assert 'without a limit' in keep_freed_memory()
    library = ctypes.CDLL(None)
    library.malloc.argtypes, library.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    library.mallinfo2.restype = MallInfo

    def take(count):
        blocks = [library.malloc(2**20) for _ in range(count)]
        for block in blocks:
            ctypes.memset(block, 1, 2**20)
        return blocks

    kept = FreedMemoryLimiter(library, slack=2**26)
    blocks = take(256)
    kept.trim_excess_memory(0.0)
    for block in blocks[::2]:
        library.free(block)
    start = resident_bytes()
    within = kept.trim_excess_memory(1.0), resident_bytes() - start
    beyond = kept.trim_excess_memory(100.0), resident_bytes() - start
    print(*within, *beyond)
"""


@NEEDS_GLIBC
def test_free_memory_amid_what_is_in_use_is_given_back_beyond_the_limit():
    command = [sys.executable, '-c', textwrap.dedent(FRAGMENTS)]
    environment = os.environ | {SWITCH: 'unlimited'}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    was_trimmed, change, is_trimmed, given = done.stdout.split()
    assert (was_trimmed, is_trimmed) == ('False', 'True')  # a minute later the former use no longer counts
    assert abs(int(change)) < 2**24 and -130 * 2**20 < int(given) < -120 * 2**20
