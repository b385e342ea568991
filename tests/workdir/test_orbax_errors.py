"""Tests that Orbax's errors of a failed read or write become a few words without a traceback."""

import errno
import logging
import sys
from types import SimpleNamespace

import pytest

from efficient_attention.errors import RunError
from efficient_attention.workdir.orbax_errors import drop_late_orbax_errors, failure_reason, without_orbax_log


@pytest.mark.parametrize(
    'error, words',
    [
        (RunError('the seal is missing'), 'the seal is missing'),
        (OSError(errno.ENOSPC, 'pages'), 'No space left on device'),
        (ValueError("kvstore: [os_error_code='13' ...]\npages"), 'Permission denied'),
        (KeyError('layers\nof many'), "KeyError: 'layers\\nof many'"),
        (ValueError(f'{"x" * 400}\npages'), f'ValueError: {"x" * 300}'),
        (ValueError(), 'ValueError: '),
    ],
)
def test_a_reason_is_a_few_words(error: BaseException, words: str):
    assert failure_reason(error) == words


@pytest.mark.parametrize('path, is_said', [('/a/orbax/checkpoint/b.py', False), ('/a/elsewhere.py', True)])
def test_what_orbax_logs_is_dropped_inside_the_block_alone(path: str, is_said: bool):
    logger = logging.getLogger('absl')
    line = logging.LogRecord('absl', logging.ERROR, path, 1, 'pages', None, None)
    with without_orbax_log():
        assert bool(logger.filter(line)) is is_said
    assert logger.filter(line)


def test_late_answers_are_dropped_and_others_shown(monkeypatch: pytest.MonkeyPatch):
    shown: list[str] = []
    monkeypatch.setattr(sys, 'unraisablehook', lambda found: shown.append(str(found.exc_value)))
    asyncio = logging.getLogger('asyncio')
    monkeypatch.setattr(asyncio, 'filters', [])
    drop_late_orbax_errors.__wrapped__()
    for error in (RuntimeError('Event loop is closed'), RuntimeError('another one')):
        sys.unraisablehook(SimpleNamespace(exc_value=error, object=None))
    assert shown == ['another one']
    assert [bool(asyncio.filter(line_raised_in(path))) for path in ('/a/orbax/b.py', '/a/c.py')] == [False, True]


def line_raised_in(path: str) -> logging.LogRecord:
    """Returns the log record that asyncio makes of an error raised in the file `path`."""
    try:
        exec(compile('raise ValueError', path, 'exec'))
    except ValueError:
        return logging.LogRecord('asyncio', logging.ERROR, path, 1, 'never retrieved', None, sys.exc_info())
    raise AssertionError
