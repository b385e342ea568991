"""Shortens the errors of Orbax and TensorStore after a failed read or write, and suppresses the messages that they
print later.
"""

import contextlib
import functools
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator

from efficient_attention.errors import RunError


@functools.cache
def drop_late_orbax_errors() -> None:
    """Keeps Python from printing the delayed errors that follow a failed read or write by Orbax.

    After one array fails, the pending reads or writes of other arrays end with unhandled errors, a page of text each.
    """
    show = sys.unraisablehook

    def show_unless_from_orbax(found: 'sys.UnraisableHookArgs') -> None:
        code = getattr(found.object, 'cr_code', None)  # `cr_code` is the code object of a coroutine.
        is_late = str(found.exc_value) == 'Event loop is closed' or '/orbax/' in getattr(code, 'co_filename', '')
        if not is_late:
            show(found)

    def is_not_from_orbax(line: logging.LogRecord) -> bool:
        trace = line.exc_info[2] if line.exc_info else None
        return not any('/orbax/' in frame.f_code.co_filename for frame, _ in traceback.walk_tb(trace))

    sys.unraisablehook = show_unless_from_orbax
    logging.getLogger('asyncio').addFilter(is_not_from_orbax)


def failure_reason(error: BaseException) -> str:
    """Returns a short text that says why a file operation failed: the message of a RunError, the operating system's
    text for the error number, or else the first line of the error.
    """
    if isinstance(error, RunError):
        return str(error)
    code = error.errno if isinstance(error, OSError) else None
    if found := re.search(r"os_error_code='(\d+)'", str(error)):
        code = int(found[1])
    if code is not None:
        return os.strerror(code)
    lines = str(error).strip().splitlines() or ['']
    return f'{type(error).__name__}: {lines[0][:300]}'


@contextlib.contextmanager
def without_orbax_log() -> Iterator[None]:
    """Context manager that drops Orbax's log lines; one failed save would log the same pages of traceback up to six
    times.
    """

    def keep(line: logging.LogRecord) -> bool:
        return '/orbax/checkpoint/' not in line.pathname

    logger = logging.getLogger('absl')
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
