"""Tests that output of Python passes, output of native libraries is dropped, and the stream is restored afterwards."""

import subprocess
import sys

PROGRAM = """
import os, sys
from efficient_attention.processes.join_hosts import suppress_native_stdout
before = sys.stdout
try:
    with suppress_native_stdout():
        print('one')
        os.write(1, b'[Gloo] Rank 0 is connected')
        print('two')
        raise ValueError
except ValueError:
    assert sys.stdout is before
    print('three', flush=True)
    os.write(1, b'four')
"""


def test_what_a_library_writes_is_dropped_within_the_block():
    done = subprocess.run([sys.executable, '-c', PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == 'one\ntwo\nthree\nfour'


def test_a_closed_standard_output_is_no_error():
    closed = [
        'bash',
        '-c',
        'exec "$@" >&-',
        'bash',
        sys.executable,
        '-c',
        PROGRAM.replace('os.write', '(lambda *_: 0)'),
    ]
    done = subprocess.run(closed, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, '')
