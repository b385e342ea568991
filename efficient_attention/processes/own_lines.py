"""Keeps lines of C++ libraries out of what a command prints.

Gloo prints a line on the standard output for each set of processes that it connects, and has no setting against it.
"""

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def python_alone_prints() -> Iterator[None]:
    """Inside it `sys.stdout` prints as before; all other output of this process and its children there is dropped."""
    if sys.stdout is None:  # stdout was closed at the start, so descriptor 1 may be another file
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
    with open(kept, 'w', encoding=sys.stdout.encoding, errors=sys.stdout.errors) as stream:
        stream.reconfigure(line_buffering=bool(sys.stdout.line_buffering))
        try:
            with contextlib.redirect_stdout(stream):
                yield
        finally:
            stream.flush()
            os.dup2(kept, 1)
