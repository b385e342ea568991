"""Tuning of glibc's allocator: what it says, where it does nothing, and that memory is then indeed kept."""

import ctypes
import platform
import resource
import subprocess
import sys
import textwrap

import pytest

from efficient_attention.commands import allocator
from efficient_attention.commands.allocator import SWITCH, keep_freed_memory

NEEDS_GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='needs glibc')


class Library:
    """A C library whose mallopt refuses the given parameters."""

    def __init__(self, *refused: int) -> None:
        self.refused, self.calls = refused, []

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
    assert keep_freed_memory() == f'allocator: freed memory stays in the process (opt out: {SWITCH}=default)'
    assert library.calls == list(allocator._SETTINGS.values()) and len(library.calls) == 4


def test_the_switch_leaves_it_alone(library, monkeypatch):
    monkeypatch.setenv(SWITCH, 'default')
    assert keep_freed_memory() == f'allocator: left alone ({SWITCH}=default)'
    assert not library.calls


@pytest.mark.parametrize('system, libc', [('Darwin', ''), ('Linux', ''), ('Linux', 'musl')])
def test_other_systems_are_left_alone(library, monkeypatch, system, libc):
    monkeypatch.setattr(platform, 'system', lambda: system)
    monkeypatch.setattr(platform, 'libc_ver', lambda: (libc, ''))
    assert keep_freed_memory() == 'allocator: left alone (not glibc)'
    assert not library.calls


def test_a_refused_setting_is_named(library):
    library.refused = (-1, -8)
    assert keep_freed_memory() == 'allocator: glibc refused M_TRIM_THRESHOLD, M_ARENA_MAX'


# Takes 64 MiB, gives them back, and counts the pages that the kernel has to map for taking them once more.
FAULTS = """
    import ctypes, resource, sys
    if sys.argv[1] == 'tuned late':
        import efficient_attention.training.loop
    if sys.argv[1] != 'plain':
        from efficient_attention.commands.allocator import keep_freed_memory
        keep_freed_memory()
    faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    before = [bytearray(2**26), faults()][1]
    again = [bytearray(2**26), faults()][1]
    print(again - before)
"""


@NEEDS_GLIBC
def test_freed_memory_is_used_again_without_new_pages():
    def faults(kind: str) -> int:
        command = [sys.executable, '-c', textwrap.dedent(FAULTS), kind]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    pages = 2**26 // resource.getpagesize()
    assert faults('tuned') < 0.1 * pages < 0.9 * pages < faults('plain')
    assert faults('tuned late') < 0.1 * pages  # imports before it change nothing


# Reserves 3 GiB without touching them, gives them back, and prints by how many bytes the heap shrank.
SHRINKING = """
    import ctypes
    from efficient_attention.commands.allocator import keep_freed_memory
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
