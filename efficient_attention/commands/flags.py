"""What the commands share: flags that answer in one line, and errors with an exit code instead of a traceback."""

import logging
import re
import sys
from collections.abc import Callable
from typing import Any

from absl import flags

from efficient_attention.errors import InputError, RunError, one_line, show_error

HELP = {'--help', '-h'}
NO_ARGUMENT = 'get_config() takes 0 positional arguments'  # what Python says of 'configs/quickstart.py:small'


def parse_flags(arguments: list[str], required: tuple[str, ...]) -> None:
    """Parses the command line into absl's flags. With --help, explains them and exits.

    Raises:
        InputError: an unknown flag or config field, a value that does not parse, a missing flag, or a word that is
            no flag.
    """
    if HELP & set(arguments[1:]):
        print_help([argument for argument in arguments if argument not in HELP])
        sys.exit(0)
    values = flag_values(arguments, required)
    for name, value in values.items():
        if value is None:
            raise InputError(f'--{name} is missing')


def print_help(arguments: list[str]) -> None:
    """Prints the flags, and where configs are read the config files or, with --config, the fields of that one."""
    hosts = flags.FLAGS.module_help('efficient_attention.commands.hosts')
    print(sys.modules['__main__'].__doc__, flags.FLAGS.main_module_help(), hosts, sep='\n')
    if 'config' not in flags.FLAGS:
        return
    from efficient_attention.commands.config_help import list_configs, list_fields  # loads the configs' dataclasses

    config = flag_values(arguments, ('config',))['config']
    print(list_configs() if config is None else list_fields(config.to_dict()))


def flag_values(arguments: list[str], names: tuple[str, ...]) -> dict[str, Any]:
    """The values of the flags `names`, None where one is missing; raises InputError as `parse_flags`."""
    try:
        positional = flags.FLAGS(arguments)
        values = {name: flags.FLAGS[name].value for name in names}
        for value in values.values():
            getattr(value, 'to_dict', None)  # a config that could not be opened raises when it is first touched
    except flags.Error as error:
        raise InputError(_without_traceback(str(error))) from None
    except (AttributeError, KeyError) as error:
        raise InputError(f'unknown config field: {one_line(error)}') from None
    except (ImportError, SyntaxError, TypeError, ValueError) as error:
        raise InputError(f'config: {one_line(error)}') from None
    except OSError as error:
        reason = re.search(r'\[Errno \d+\] (.*)', one_line(error))
        raise InputError(f'config: {reason[1] if reason else one_line(error)}') from None
    if positional[1:]:
        raise InputError(f'{positional[1]!r} is no flag; flags and config fields begin with --')
    return values


def run_command(main: Callable[[], None]) -> None:
    """Runs `main` and exits: 0 when it returns, 2 after bad input (also what a named backend does not serve), 1 after
    another failure that has a clear line, 130 after Ctrl-C outside the training steps, which save first."""
    logging.basicConfig(level=logging.INFO, format='%(message)s')
    for noisy in ('absl', 'jax'):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        main()
    except (InputError, NotImplementedError) as error:
        fail(error, 2)
    except RunError as error:
        fail(error, 1)
    except KeyboardInterrupt:
        print('interrupted', file=sys.stderr)
        sys.exit(130)


def fail(error: Exception, code: int) -> None:
    """Prints the error as one line and exits with `code`."""
    show_error(error)
    sys.exit(code)


def _without_traceback(text: str) -> str:
    """`text` with nothing but the last line of the traceback that ml_collections puts into its messages."""
    if NO_ARGUMENT in text:
        return f'{text.partition(": Error")[0]}: this config takes no argument; leave out the colon and what follows'
    before, found, lines = text.partition('Traceback (most recent call last):')
    return ' '.join([*before.split(), lines.strip().splitlines()[-1]]) if found else text
