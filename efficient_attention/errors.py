"""Defines the errors that end a command with a one-line message, and the exit codes of all commands."""

import difflib
import enum
import numbers
import os
import sys
from collections.abc import Collection
from typing import cast

MOST_LETTERS = 4000  # maximum number of characters of a printed line
KINDS_IN_WORDS: dict[type, str] = {  # type of a value -> its name in error messages
    str: 'a text',
    int: 'a whole number',
    float: 'a number',
    bool: 'true or false',
    list: 'a list',
    tuple: 'a list',
    dict: 'a group of fields',
}


class ExitCode(enum.IntEnum):
    """The exit code of a process; docs/reliability.md has a table of all codes."""

    DONE = 0
    FAILED = 1  # The run failed for a reason other than its input (RunError).
    BAD_INPUT = 2  # InputError
    STOPPED = 3  # A stop signal ended a run, which has saved its state (RunStopped).
    WATCHDOG = 4  # The watchdog ended a process that could not continue.
    INTERRUPTED = 130  # ended by Ctrl-C when there was nothing to save, or by a second Ctrl-C
    TERMINATED = 143  # ended by SIGTERM when there was nothing to save, or by a second SIGTERM


class InputError(ValueError):
    """Bad input from the user; the message is one line that says what is wrong and where (field, file, byte offset,
    known values).

    Entry points print it as `error: <line>` and exit with code 2.
    """


class MissingExtraError(ModuleNotFoundError, InputError):
    """A command, an option or a public name needs packages that are not installed; the message is one line with the pip
    command.

    The attribute `name` is the missing module, such as 'PIL'.
    """


class RunError(RuntimeError):
    """A run cannot continue for a reason other than its input, such as a full disk or a loss that stays infinite.

    Its message is one line. Entry points print it as `error: <line>` and exit with code 1.
    """


class RunStopped(Exception):
    """A stop signal has ended a run, after the run saved its state and reported it; entry points exit with code 3."""


class PeerError(RunError):
    """Another process of a multi-process run is missing or has ended; the message names it. Entry points exit with code
    4."""


def exit_code(error: BaseException) -> int:
    """Returns the exit code for a command that ends with this error."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    codes = {
        InputError: ExitCode.BAD_INPUT,
        # An attention backend raises this error if it does not support the requested attention.
        NotImplementedError: ExitCode.BAD_INPUT,
        PeerError: ExitCode.WATCHDOG,
        RunStopped: ExitCode.STOPPED,
        KeyboardInterrupt: ExitCode.INTERRUPTED,
    }
    return next((code for kind, code in codes.items() if isinstance(error, kind)), ExitCode.FAILED)


def missing_extra_error(who: str, extra: str, error: ImportError | None = None) -> MissingExtraError:
    """Returns the error for packages of an extra that are not installed.

    Args:
        who: a command, option or public name that needs the packages, such as 'ea.pipeline'.
        extra: the name of the extra in pyproject.toml.
        error: the error of the import that failed.
    """
    reason = f' ({error})' if error else ''
    name = error.name if error else None
    return MissingExtraError(f"{who} needs: pip install 'efficient-attention[{extra}]'{reason}", name=name)


def nearest(name: str, known: Collection[str], *, most: int = 1) -> list[str]:
    """Returns the known names that are similar to an unknown name, the most similar first; at most `most` names."""
    return difflib.get_close_matches(name, known, n=most)


def advice_on_name(name: str, known: Collection[str]) -> str:
    """Returns the end of an error message about an unknown name: the most similar known name, or all known names."""
    near = nearest(name, known)
    return f'did you mean {near[0]}?' if near else f'known: {", ".join(known)}'


def require(holds: bool, what: str, value: object, allowed: str) -> None:
    """Raises an InputError unless a condition holds; the message has the name of the field or argument, its value and
    the allowed values."""
    if not holds:
        raise InputError(f'{what} is {value!r}; it must be {allowed}')


def require_at_least(minimum: int, what: str, value: object) -> None:
    """Raises an InputError that names the argument, unless its value is an integer of at least `minimum`."""
    require(is_whole_number(value), what, value, 'a whole number')
    require(cast(int, value) >= minimum, what, value, f'at least {minimum}')


def require_truth_values(what: str, **values: object) -> None:
    """Raises an InputError unless all given arguments are True or False; the message names the first that is not."""
    for name, value in values.items():
        require(isinstance(value, bool), f'{what} {name}', value, 'True or False')


def show_error(error: Exception) -> None:
    """Prints an error as one line on the standard error stream."""
    print(f'error: {one_line(error)}', file=sys.stderr)


def write_stderr_unlocked(line: str) -> None:
    """Writes a line directly to file descriptor 2 (standard error), because another thread may hold the lock of
    `sys.stderr`."""
    os.write(2, f'{line}\n'.encode())


def one_line(error: BaseException) -> str:
    """Returns the message of an error in one line; if ml_collections has wrapped an error, the message of the inner
    error.

    A message may quote the content of a file. A long message is therefore shortened, and control characters, which a
    terminal would execute, are escaped.
    """
    while error.args and isinstance(error.args[0], BaseException):
        error = error.args[0]
    words = ' '.join(str(error.args[0] if isinstance(error, KeyError) and error.args else error).split())
    if len(words) > MOST_LETTERS:
        words = f'{words[: MOST_LETTERS // 2]} ... {words[-MOST_LETTERS // 2 :]}'
    return ''.join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in words)


def counted(count: int, noun: str) -> str:
    """Returns a count with its noun, such as '1 line' or '1,200 lines'."""
    return f'{count:,} {noun}' if count == 1 else f'{count:,} {noun}s'


def is_whole_number(value: object) -> bool:
    """Whether a value is an integer of Python or NumPy, but not a bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether a value is a real number of Python or NumPy, but not a bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
