"""What the commands share: flags that answer in one line, and errors with an exit code instead of a traceback."""

import logging
import sys
from collections.abc import Callable

from absl import flags

from efficient_attention.errors import InputError, RunError


def parse_flags(arguments: list[str], required: tuple[str, ...]) -> list[str]:
    """Parses the command line; returns the positional arguments.

    Raises:
        InputError: an unknown flag or config field, a value that does not parse, or a missing flag.
    """
    try:
        positional = flags.FLAGS(arguments)
    except flags.Error as error:
        raise InputError(_first_line(error)) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # what a config file or an override raises
        raise InputError(f'config: {_first_line(error)}') from None
    except OSError as error:
        raise InputError(f'config: {error.strerror}: {error.filename}') from None
    for name in required:
        if flags.FLAGS[name].value is None:
            raise InputError(f'--{name} is missing')
    return positional[1:]


def run_command(main: Callable[[], None]) -> None:
    """Runs `main` and exits: 0 when it returns, 2 after bad input, 1 after another failure that has a clear line."""
    logging.basicConfig(level=logging.INFO, format='%(message)s')
    for noisy in ('absl', 'jax'):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        main()
    except InputError as error:
        fail(error, 2)
    except RunError as error:
        fail(error, 1)


def fail(error: Exception, code: int) -> None:
    """Prints the error as one line and exits with `code`."""
    print(f'error: {_first_line(error)}', file=sys.stderr)
    sys.exit(code)


def _first_line(error: BaseException) -> str:
    return ' '.join(str(error.args[0] if isinstance(error, KeyError) and error.args else error).split())
