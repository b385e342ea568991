"""Tests what counts as progress, how long each kind of work may take, and how a process that hangs ends."""

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from efficient_attention.errors import ExitCode
from efficient_attention.processes.watchdog import (
    COMPILING,
    DEVICE,
    EVALUATING,
    INPUT,
    LONG,
    SAVING,
    TICKS,
    Watchdog,
)
from efficient_attention.workdir.lock import WorkdirLock

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 100.0
TICK = SECONDS / TICKS


class Clock:
    """A watchdog whose clock is moved by hand, with the list of its findings."""

    def __init__(self, folder: Path) -> None:
        self.now, self.found = 0.0, []
        self.watchdog = Watchdog(SECONDS, folder, end=self.found.append, clock=lambda: self.now)

    def passes(self, seconds: float) -> bool:
        """Moves the clock tick by tick and checks for progress; returns whether the watchdog found too little."""
        for _ in range(round(seconds / TICK)):
            self.now += TICK
            self.watchdog.check_progress()
            if self.found:
                return True
        return False


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


@pytest.mark.parametrize('doing', [INPUT, DEVICE])
def test_input_and_steps_may_take_the_time_that_is_given(clock: Clock, tmp_path: Path, doing: str):
    clock.watchdog.note_progress(120, doing)
    assert not clock.passes(SECONDS) and clock.passes(3 * TICK)
    (line,) = clock.found
    assert line.startswith(f'process 0 of 1 stalled at step 120, {doing} for 10')
    assert line.endswith(f'the stacks of its threads are in {tmp_path}/stalled-0.txt') and '\n' not in line


@pytest.mark.parametrize('doing', [COMPILING, EVALUATING, SAVING])
def test_what_compiles_or_writes_may_take_longer(clock: Clock, doing: str):
    clock.watchdog.note_progress(1, doing)
    assert not clock.passes(LONG * SECONDS) and clock.passes(3 * TICK)
    assert f'stalled at step 1, {doing} for 60' in clock.found[0]


def test_every_note_is_progress(clock: Clock):
    for step in range(1, 5):
        for doing in (INPUT, DEVICE):
            clock.watchdog.note_progress(step, doing)
            assert not clock.passes(0.9 * SECONDS)
    clock.watchdog.note_progress(
        4, DEVICE
    )  # the same note again is progress as well, as between the batches of an evaluation
    assert not clock.passes(0.9 * SECONDS)
    assert clock.passes(SECONDS)


def test_nothing_is_watched_before_the_first_note(clock: Clock):
    assert not clock.passes(20 * SECONDS)


def test_no_step_has_less_time_than_the_first_one_took(clock: Clock):
    clock.watchdog.note_progress(1, COMPILING)
    assert not clock.passes(4 * SECONDS)
    clock.watchdog.note_progress(2, INPUT)
    assert not clock.passes(3.9 * SECONDS) and clock.passes(SECONDS)


def test_a_machine_that_slept_has_not_stalled(clock: Clock):
    clock.watchdog.note_progress(3, DEVICE)
    assert not clock.passes(0.9 * SECONDS)
    clock.now += 1000 * SECONDS
    clock.watchdog.check_progress()
    assert not clock.found


def test_without_a_limit_nothing_is_watched(tmp_path: Path):
    with Watchdog(0, tmp_path) as watchdog:
        watchdog.note_progress(1, INPUT)
        assert 'watchdog' not in {thread.name for thread in threading.enumerate()}


HANGS = """
    import sys, pathlib, threading
    from efficient_attention.processes.watchdog import DEVICE, Watchdog
    from efficient_attention.workdir.lock import WorkdirLock

    def wait_for_ever():
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()  # in C, where no exception and no signal handler of Python's gets to

    workdir = pathlib.Path(sys.argv[1])
    print('not flushed')
    with WorkdirLock(workdir), Watchdog(0.5, workdir) as watchdog:
        watchdog.note_progress(7, DEVICE)
        wait_for_ever()
"""


def test_a_process_that_hangs_ends_with_one_line_its_stacks_and_a_code_of_its_own(tmp_path: Path):
    command = [sys.executable, '-c', textwrap.dedent(HANGS), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ.copy(), capture_output=True, text=True, timeout=120)
    assert done.returncode == ExitCode.WATCHDOG == 4
    (line,) = done.stderr.splitlines()
    assert line.startswith('error: process 0 of 1 stalled at step 7, waiting for the device for ')
    assert done.stdout == 'not flushed\n'
    stacks = (tmp_path / 'stalled-0.txt').read_text(encoding='utf-8')
    assert 'in wait_for_ever' in stacks and stacks.count('hread 0x') >= 2
    WorkdirLock(tmp_path).close()  # raises an error if the lock is not free


def test_stacks_that_cannot_be_written_go_to_the_standard_error_stream(tmp_path: Path):
    program = textwrap.dedent(HANGS).replace('Watchdog(0.5, workdir)', 'Watchdog(0.5, workdir / "gone")')
    command = [sys.executable, '-c', program, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ.copy(), capture_output=True, text=True, timeout=120)
    assert done.returncode == ExitCode.WATCHDOG and 'in wait_for_ever' in done.stderr
