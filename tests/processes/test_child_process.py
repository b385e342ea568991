"""Tests that a command's child process ends together with a command that was killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from efficient_attention.processes import child_process
from efficient_attention.processes.child_process import command_tied_to_parent

# Starts a child, directly or as on other systems with the process `follow` in between. The child prints its process id.
PARENT = """
import subprocess, sys
from efficient_attention.processes.child_process import command_tied_to_parent
program = 'import os, time; print(os.getpid(), flush=True); time.sleep(60)'
command = command_tied_to_parent([sys.executable, '-c', program])
if sys.argv[1] == 'followed':
    program = 'import sys; sys.platform = "darwin"; import runpy; sys.argv = sys.argv[1:]; '
    command = [sys.executable, '-c', program + 'runpy.run_path(sys.argv[0], run_name="__main__")', *command[2:]]
subprocess.run(command)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] not in 'ZX'
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != 'linux', reason='looks at processes through /proc')
@pytest.mark.parametrize('way', ['killed by the kernel', 'followed'])
def test_a_killed_parent_leaves_no_child(way: str):
    parent = subprocess.Popen([sys.executable, '-c', PARENT, way], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    assert is_alive(child)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 5
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(child)
    parent.stdout.close()


def test_the_child_gets_its_arguments_and_environment_and_gives_its_code():
    program = 'import os, sys; print(sys.argv[1:], os.environ["KIND"]); sys.exit(7)'
    environment = os.environ | {'KIND': 'child'}
    command = command_tied_to_parent([sys.executable, '-c', program, '--a b', 'c'])
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, "['--a b', 'c'] child\n")


def test_a_child_whose_parent_has_ended_before_it_began_does_nothing(monkeypatch):
    monkeypatch.setattr(child_process.ctypes, 'CDLL', lambda *_, **__: type('C', (), {'prctl': lambda *_: 0}))
    monkeypatch.setattr(os, 'getppid', lambda: 1)
    monkeypatch.setattr(os, 'execvp', lambda *_: pytest.fail('it was started'))
    with pytest.raises(SystemExit):
        child_process.exec_tied_to_parent(['program'], parent=12345)


def test_where_the_kernel_does_not_help_the_code_is_handed_on(monkeypatch):
    monkeypatch.setattr(child_process, 'INTERVAL', 0.01)
    assert child_process.run_until_parent_ends([sys.executable, '-c', 'raise SystemExit(5)'], os.getppid()) == 5
